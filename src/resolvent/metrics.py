"""Metrics: numbers that say how well a model predicts samples with known labels."""

from resolvent.problem.metrics import *
from resolvent.problem.metrics import __all__ as __all__
from resolvent.problem.models.losses import higher_is_better

__all__ = ["higher_is_better", *__all__]
