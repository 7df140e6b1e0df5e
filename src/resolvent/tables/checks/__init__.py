"""Checks of a table before the first round: all findings at once."""
