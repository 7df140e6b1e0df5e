"""Defaults that do not depend on the scale of the parameters: Fed+'s sigma and delta, and weights like sigma."""

from collections.abc import Callable
from typing import TypeAlias

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.adaptive import Abstention, RelativeDelta
from resolvent.algorithms.methods.fedplus import FedPlus
from resolvent.algorithms.methods.personal_splitting import PersonalSplitting
from resolvent.math.penalties import Penalty
from resolvent.problem.solvers import LocalSolver

__all__ = ["DELTA", "MEDIAN_DISTANCES", "UNSMOOTHED_MEDIAN_DISTANCES", "default_sigma", "with_abstention", "with_delta"]

MEDIAN_DISTANCES = 1.0  # delta of norms: half of the parties are pulled to the centre completely
UNSMOOTHED_MEDIAN_DISTANCES = 0.3  # without smoothing, parties that are nearer than about delta agree exactly
DELTA = 10.0  # delta of penalties that are not norms: a squared norm pulls by the share delta/(1 + delta)
_KAPPA = 0.95  # in the middle of the range that the Fed+ paper recommends
_SIGMA = 0.1  # of solvers without a step size

FedPlusMethod: TypeAlias = FedPlus | PersonalSplitting


def default_sigma(solver: LocalSolver, sigma: float | None) -> float:
    """Sigma, by default that for which kappa = 1/(1 + step size * sigma) is 0.95."""
    if sigma is not None:
        return sigma
    step_size = solver.step_size
    return _SIGMA if step_size is None else (1 / _KAPPA - 1) / step_size  # type: ignore[return-value]


def with_abstention(solver: LocalSolver, sigma: float | None, method: Algorithm) -> Algorithm:
    """Fed+ whose parties abstain, if its sigma is the default; never with a solver that protects samples by noise."""
    return method if sigma is not None or solver.adds_noise else Abstention(method)  # type: ignore[arg-type]


def with_delta(penalty: Penalty, delta: float | None, method: Callable[[float], FedPlusMethod],
               median_distances: float = MEDIAN_DISTANCES) -> Algorithm:
    """The method with this delta; by default with some median distances for norms, and with 10 for other penalties."""
    if delta is not None:
        return method(delta)
    return RelativeDelta(method(median_distances)) if penalty.has_bounded_pull else method(DELTA)
