"""Three levels of OPT against two and one.

    specjax reproduce configs/reproduce/hierarchy.py

What came of it stands in docs/results/reproduce.md.
"""

from specjax.reproduce.presets import Preset

REPRODUCE = Preset(name="hierarchy")
