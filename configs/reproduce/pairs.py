"""Tokens a second and acceptance of OPT pairs.

    specjax reproduce configs/reproduce/pairs.py

What came of it stands in docs/results/reproduce.md.
"""

from specjax.reproduce.presets import Preset

REPRODUCE = Preset(name="pairs")
