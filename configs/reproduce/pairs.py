"""Tokens per second and acceptance of OPT pairs.

    specjax reproduce configs/reproduce/pairs.py

Result: docs/results/reproduce.md.
"""

from specjax.reproduce.setup import Preset

REPRODUCE = Preset(name="pairs")
