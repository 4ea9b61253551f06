"""Recipes that train models and drafters, one a file."""
