"""Aggregators: maps from the replies of a round to one vector."""

from resolvent.algorithms.aggregators import *
from resolvent.algorithms.aggregators import __all__ as __all__
