"""Participation: which parties take part in a round, with which weight, and how much work they can do."""

from resolvent.algorithms.participation import *
from resolvent.algorithms.participation import __all__ as __all__
