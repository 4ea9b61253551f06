"""Three levels of OPT against two and one.

    specjax reproduce configs/reproduce/hierarchy.py

Result: docs/results/reproduce.md.
"""

from specjax.reproduce.setup import Preset

REPRODUCE = Preset(name="hierarchy")
