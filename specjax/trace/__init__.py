"""What happened in every round of a run: records, and their layout for pictures.

rounds.py measures; lanes.py and strip.py lay out what was measured, without a picture library; pictures.py draws
(matplotlib) and cli/trace_drawing.py prints.
"""
