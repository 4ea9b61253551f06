"""The best gamma by alpha and c.

    specjax reproduce configs/reproduce/figure_3.py

Result: docs/results/reproduce.md.
"""

from specjax.reproduce.setup import Preset

REPRODUCE = Preset(name="figure-3")
