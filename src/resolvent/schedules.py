"""Schedules: step sizes, or factors of a learning rate, that change with the round."""

from resolvent.problem.schedules import *
from resolvent.problem.schedules import __all__ as __all__
