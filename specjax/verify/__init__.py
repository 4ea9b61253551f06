"""Verifiers: which path of a draft to accept, and what to append. Each says lossless or lossy in its first line."""

from specjax.verify.token import token_level as token_level
