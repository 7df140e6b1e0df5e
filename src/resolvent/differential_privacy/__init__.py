"""Differential privacy: which compositions are private, what they spend, budgets of runs, and a test by attack."""
