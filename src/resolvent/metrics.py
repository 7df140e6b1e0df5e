"""Metrics: numbers that say how well a model predicts samples with known labels."""

from resolvent.problem.metrics import *
from resolvent.problem.metrics import __all__ as __all__
