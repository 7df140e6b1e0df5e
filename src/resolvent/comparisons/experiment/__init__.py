"""Experiment files: their settings, checks, and the parts that they can name."""
