"""Settings that do not depend on the scale of the parameters, and what several presets put around a method."""

from typing import Literal

import optax

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.replies import StaleReplies
from resolvent.algorithms.combinators.server_steps import ServerOptimizer
from resolvent.problem.solvers.optimizers import traced_optimizer
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["Aggregated", "aggregate_parties", "default_sigma", "with_server_momentum"]

_KAPPA = 0.95  # in the middle of the range that the Fed+ paper recommends
_SIGMA = 0.1  # of solvers without a step size

Aggregated = Literal["active", "all"]


def default_sigma(solver: LocalSolver, sigma: float | None, kappa: float = _KAPPA) -> float:
    """Sigma, by default that for which 1/(1 + step size * sigma) is kappa."""
    if sigma is not None:
        return sigma
    step_size = solver.step_size
    return _SIGMA if step_size is None else (1 / kappa - 1) / step_size  # type: ignore[return-value]


def with_server_momentum(method: Algorithm) -> Algorithm:
    """A method whose shared model converges in few rounds also if the learning rate is small."""
    return ServerOptimizer(method, traced_optimizer(optax.sgd, learning_rate=1.0, momentum=0.9))


def aggregate_parties(parties: Aggregated, method: Algorithm) -> Algorithm:
    """Let a method aggregate over the active parties, or over all N with the last replies of absent parties."""
    return StaleReplies(method) if parties == "all" else method
