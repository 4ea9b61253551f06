"""What is decoded with where nobody says otherwise, and at the most: in Python, presets and on the command line."""

TEMPERATURE = 0.8  # 0 repeats itself on open-ended text, 1 wanders with small models
MAX_NEW_TOKENS = 64
LARGEST_TREE = 1024  # nodes that a round may check, the root included: its mask grows with their square
LONGEST_MATCH = 64  # tokens that a match of past text may have: each is compared by a step of its own
LARGEST_NEW = 2**20  # tokens of a row: caches are made for all of them at once
LARGEST_TEMPERATURE = 3.4028234663852886e38  # float32's largest number
LARGEST_SEED = 2**32 - 1  # seeds and rows are uint32
SEED = 0  # fixed, so that the same call gives the same text
