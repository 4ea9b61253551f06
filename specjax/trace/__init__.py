"""Traces: what happened in every round of a request, and its layout for figures.

rounds.py records a request; strip.py and lanes.py lay it out without a plotting library; pictures.py draws with
matplotlib, cli/trace_drawing.py in the terminal.
"""
