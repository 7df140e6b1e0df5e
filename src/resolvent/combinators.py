"""Combinators: functions from one algorithm to another, such as acceleration and compression."""

from resolvent.algorithms.combinators import *
from resolvent.algorithms.combinators import __all__ as __all__
