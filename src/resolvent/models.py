"""Models: a predictor and its loss."""

from resolvent.problem.models import *
from resolvent.problem.models import __all__ as __all__
