"""Portfolios: prices from a file, a market with costs, strategies, back-tests, their metrics and their uncertainty."""

from resolvent.problem.portfolio import *
from resolvent.problem.portfolio import __all__ as __all__
