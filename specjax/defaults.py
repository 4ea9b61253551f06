"""Default values and upper limits of the decoding options, in Python, in presets and on the command line."""

TARGET = "bundled/opt-target"  # the default target
DRAFTS = ("bundled/opt-draft", "bundled/opt-tiny")  # its draft models where none is named, as many as are needed
GAMMA = 3  # draft length of this pair: faster than 5 at the default temperature (specjax/bundled/README.md)
TEMPERATURE = 0.8  # greedy decoding of open-ended text repeats itself; at 1, small models lose coherence
MAX_NEW_TOKENS = 64
LARGEST_TREE = 1024  # nodes of a draft tree, root included: its mask grows with their square
LONGEST_MATCH = 64  # tokens of a match in past text: each is compared in a step of its own
LARGEST_NEW = 2**20  # new tokens of a row: caches are allocated for all of them
LARGEST_TEMPERATURE = 3.4028234663852886e38  # largest float32
LARGEST_SEED = 2**32 - 1  # seeds and rows are uint32
SEED = 0  # fixed, so that the same call returns the same text
