"""Local solvers: what a party does with its subproblem."""

from resolvent.problem.solvers.optimizers import LBFGS, OptaxSolver, adam, momentum
from resolvent.problem.solvers.solver import GD, SGD, ClosedForm, LocalSolver

__all__ = ["GD", "LBFGS", "SGD", "ClosedForm", "LocalSolver", "OptaxSolver", "adam", "momentum"]
