"""Speed and alpha in translation and summarization, three drafts, T = 0 and 1.

    specjax reproduce configs/reproduce/table_2.py

Result: docs/results/reproduce.md.
"""

from specjax.reproduce.setup import Preset

REPRODUCE = Preset(name="table-2")
