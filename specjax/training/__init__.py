"""Recipes that train models and drafters, one per file."""
