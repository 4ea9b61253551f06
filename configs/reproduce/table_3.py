"""Alpha of unigrams, bigrams and models.

    specjax reproduce configs/reproduce/table_3.py

Result: docs/results/reproduce.md.
"""

from specjax.reproduce.setup import Preset

REPRODUCE = Preset(name="table-3")
