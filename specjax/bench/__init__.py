"""Measurements: what runs, how it is timed; reports and pictures stand apart."""
