"""Published tables and figures, measured again: `specjax reproduce`.

published.py holds the numbers as printed; opt.py, paper.py and figures.py measure their like; checks.py says which part
of their shape shows here; telling.py and drawing.py show it.
"""
