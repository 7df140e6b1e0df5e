"""Experiment files, comparisons, run folders and reports."""
