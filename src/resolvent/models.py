"""Models: a predictor and its loss."""

from resolvent.problem.models import *
from resolvent.problem.models import __all__
from resolvent.torch.torch_models import *

__all__ = [*__all__, "from_torch", "torch_module"]
