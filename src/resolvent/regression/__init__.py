"""Regressions with second derivatives: generalised linear models, and Cox models stratified by party."""
