"""Speed and operations by alpha and gamma.

    specjax reproduce configs/reproduce/figure_4.py

Result: docs/results/reproduce.md.
"""

from specjax.reproduce.setup import Preset

REPRODUCE = Preset(name="figure-4")
