"""Experiment files, comparisons, run folders, reports, and the papers' experiments."""
