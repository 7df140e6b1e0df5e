"""Rounds in compiled calls, and how the parties of a cohort are scheduled."""
