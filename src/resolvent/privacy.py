"""Differential privacy: which compositions are private, what they spend, budgets of runs, and a test by attack."""

from resolvent.differential_privacy import *
from resolvent.differential_privacy import __all__ as __all__
