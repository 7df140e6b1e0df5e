"""Comparisons that run, their folders, summaries and reports."""
