"""Published tables and figures, measured again: `specjax reproduce`.

opt.py, paper.py and figures.py hold the published numbers, the cases that measure the same here, and the claims;
pairs.py measures a target with a draft; checks.py gives verdicts; report.py presents them.
"""
