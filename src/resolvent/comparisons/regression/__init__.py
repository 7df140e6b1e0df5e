"""Regressions over sites as statisticians read them: formulas, estimates with errors, heterogeneity, a page."""
