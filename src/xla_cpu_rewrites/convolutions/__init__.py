"""Convolutions: a rule, and forms that are faster for some shapes."""
