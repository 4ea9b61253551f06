"""What is decoded with where nobody says otherwise: the same in Python, in presets and on the command line."""

TEMPERATURE = 0.8  # 0 repeats itself on open-ended text, 1 wanders with small models
MAX_NEW_TOKENS = 64
SEED = 0  # fixed, so that the same call gives the same text
