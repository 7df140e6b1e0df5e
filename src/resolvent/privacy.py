"""Differential privacy: which compositions are private, what they spend, budgets of runs, and a test by attack."""

from resolvent.algorithms.privacy import *
from resolvent.algorithms.privacy import __all__ as __all__
