"""A check that several presets share: their local work must be plain gradient steps."""

from resolvent.errors import InputError
from resolvent.problem.solvers.solver import GD, SGD, LocalSolver


def require_gradient_steps(preset: str, solver: LocalSolver) -> SGD | GD:
    """Return the solver if its work is a number of plain gradient steps."""
    if not isinstance(solver, SGD | GD):
        raise InputError(f"{preset} needs plain gradient steps, got {type(solver).__name__}: use SGD or GD; for "
                         "clipped gradients, SGD(clip=1.0)")
    return solver
