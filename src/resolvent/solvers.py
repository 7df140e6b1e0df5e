"""Local solvers: how a party minimises its subproblem."""

from resolvent.problem.solvers import *
from resolvent.problem.solvers import __all__ as __all__
