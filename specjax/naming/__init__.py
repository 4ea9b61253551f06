"""Drafters and policies by name, as the command line, presets and benchmarks write them, and what the names make."""
