"""Portfolios: prices from a file, a market with costs, strategies, back-tests, their metrics and their uncertainty."""

from resolvent.papers.portfolio import *
from resolvent.papers.portfolio import __all__ as __all__
