"""Survival over sites: Kaplan-Meier curves and log-rank tests from counts of events and of rows at risk."""
