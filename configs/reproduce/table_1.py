"""Operations and speed in theory, to their printed digits.

    specjax reproduce configs/reproduce/table_1.py

Result: docs/results/reproduce.md.
"""

from specjax.reproduce.setup import Preset

REPRODUCE = Preset(name="table-1")
