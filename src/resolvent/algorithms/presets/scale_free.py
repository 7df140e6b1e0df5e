"""Defaults that do not depend on the scale of the parameters: Fed+'s sigma and delta, and weights like sigma.

``with_delta`` and ``default_sigma`` complete the settings of the paper's Fed+; ``with_protection`` adds to it what lets
its parties gain in few rounds and keep, under an attack, what training alone gives.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import optax

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.adaptive import Abstention, RelativeDelta
from resolvent.algorithms.combinators.held_out import HeldOutInterpolation
from resolvent.algorithms.combinators.replies import StaleReplies
from resolvent.algorithms.combinators.server_steps import ServerOptimizer
from resolvent.algorithms.methods.fedplus import FedPlus
from resolvent.algorithms.methods.personal_splitting import PersonalSplitting
from resolvent.math.penalties import Penalty
from resolvent.problem.solvers import LocalSolver, traced_optimizer

__all__ = ["DELTA", "MEDIAN_DISTANCES", "UNSMOOTHED_MEDIAN_DISTANCES", "Aggregated", "aggregate_parties", "default_lam",
           "default_sigma", "is_papers", "with_choice", "with_delta", "with_protection", "with_server_momentum"]

MEDIAN_DISTANCES = 1.0  # delta of norms: half of the parties are pulled to the centre completely
UNSMOOTHED_MEDIAN_DISTANCES = 0.3  # without smoothing, parties that are nearer than about delta agree exactly
DELTA = 10.0  # delta of penalties that are not norms: a squared norm pulls by the share delta/(1 + delta)
_KAPPA = 0.95  # in the middle of the range that the Fed+ paper recommends
_SIGMA = 0.1  # of solvers without a step size

FedPlusMethod: TypeAlias = FedPlus | PersonalSplitting
Aggregated = Literal["active", "all"]


def default_sigma(solver: LocalSolver, sigma: float | None, kappa: float = _KAPPA) -> float:
    """Sigma, by default that for which 1/(1 + step size * sigma) is kappa."""
    if sigma is not None:
        return sigma
    step_size = solver.step_size
    return _SIGMA if step_size is None else (1 / kappa - 1) / step_size  # type: ignore[return-value]


def is_papers(solver: LocalSolver, sigma: float | None) -> bool:
    """Whether Fed+ is the paper's, without the library's additions.

    They would use samples that noise protects, and they train a second model, whose solver cannot keep a state too.
    """
    keeps_state = jax.tree.leaves(jax.eval_shape(lambda: solver.init_memory(jnp.zeros(1))))
    return sigma is not None or solver.adds_noise or bool(keeps_state)


def default_lam(solver: LocalSolver, sigma: float | None, lam: float | None) -> float:
    """Where local work starts: by default at the party's model in the paper's Fed+, and at the centre otherwise."""
    if lam is not None:
        return lam
    return 0.0 if is_papers(solver, sigma) else 1.0


def with_protection(solver: LocalSolver, sigma: float | None, aggregate: Aggregated, method: Algorithm) -> Algorithm:
    """Fed+ in the paper's form, or with abstention, the server's momentum, and a choice of each party.

    The choice is that of ``model_interpolation`` between the model that Fed+ gives a party and its model trained alone.
    """
    if is_papers(solver, sigma):
        return aggregate_parties(aggregate, method)
    abstaining = Abstention(method)  # type: ignore[arg-type]
    return with_choice(solver, sigma, with_server_momentum(aggregate_parties(aggregate, abstaining)))


def with_choice(solver: LocalSolver, sigma: float | None, method: Algorithm) -> Algorithm:
    """The method in the paper's form, or with each party's choice between its personal model and its own alone."""
    return method if is_papers(solver, sigma) else HeldOutInterpolation(method, solver, fallback="joint")


def with_server_momentum(method: Algorithm) -> Algorithm:
    """A method whose shared model converges in few rounds also if the learning rate is small."""
    return ServerOptimizer(method, traced_optimizer(optax.sgd, learning_rate=1.0, momentum=0.9))


def aggregate_parties(parties: Aggregated, method: Algorithm) -> Algorithm:
    """Let a method aggregate over the active parties, or over all N with the last replies of absent parties."""
    return StaleReplies(method) if parties == "all" else method


def with_delta(penalty: Penalty, delta: float | None, method: Callable[[float], FedPlusMethod],
               median_distances: float = MEDIAN_DISTANCES) -> Algorithm:
    """The method with this delta; by default with some median distances for norms, and with 10 for other penalties."""
    if delta is not None:
        return method(delta)
    return RelativeDelta(method(median_distances)) if penalty.has_bounded_pull else method(DELTA)
