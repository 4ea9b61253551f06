"""Trained draft heads: read from any published format, and written back."""

from specjax.heads.head import Head as Head
from specjax.heads.loading import load_head as load_head
