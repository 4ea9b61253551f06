"""The c matrix of OPT: a step of each draft over a step of its target.

    specjax reproduce configs/reproduce/c_matrix.py

Result: docs/results/reproduce.md.
"""

from specjax.reproduce.setup import Preset

REPRODUCE = Preset(name="c-matrix")
