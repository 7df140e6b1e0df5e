"""Predictors and their losses."""
