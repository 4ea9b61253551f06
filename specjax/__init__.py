"""Speculative decoding in JAX: several times faster, without changing a single probability."""

from specjax import drafters as drafters
from specjax import trees as trees
from specjax import verify as verify
from specjax.api import Event as Event
from specjax.api import Generation as Generation
from specjax.api import generate as generate
from specjax.api import stream as stream
from specjax.load import load as load
from specjax.model import Model as Model
from specjax.stopping import Stop as Stop

__version__ = "0.1.0"
