"""Problems: the objectives of all parties, and problems with a known optimum for experiments."""

from resolvent.problem.problems import *
from resolvent.problem.problems import __all__ as __all__
