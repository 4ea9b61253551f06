"""A trace diagram of one translation: gamma 7, gamma 3, standard decoding.

    specjax reproduce configs/reproduce/figure_5.py

Result: docs/results/reproduce.md.
"""

from specjax.reproduce.setup import Preset

REPRODUCE = Preset(name="figure-5")
