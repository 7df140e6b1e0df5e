"""The rounds and the sums of a fit where all rows are in one table, and which standard errors a regression has."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.settings import LEVERAGE_POWERS, Errors
from resolvent.errors import InputError
from resolvent.problem.problem import shares_by_size
from resolvent.regression.objective import FitSums, RegressionProblem, ScoreWeights, inverse_of
from resolvent.simulator.record.events import EvaluationEvent
from resolvent.simulator.record.result import Result
from resolvent.simulator.run import simulate


def check_errors(model: RegressionModel, errors: Errors) -> None:
    """Refuse errors with leverages for regressions that have none."""
    family = model.family
    if errors in LEVERAGE_POWERS and (family is None or family.predictors > 1 or family.extra):
        raise InputError(f"errors={errors} needs the leverages of a generalised linear model (gaussian, binomial, "
                         f"poisson, gamma), and {model.family_name} has none: use robust or clustered")


def rounds_of(algorithm: Algorithm, problem: RegressionProblem, rounds: int, every: int,
              has_ended: Callable[[Any], bool]) -> Result:
    """The rounds of an algorithm on the objectives of the sites, until the server's state says that it has ended."""
    def observe(event: EvaluationEvent) -> None:
        if has_ended(event.result().state.server):
            event.stop("converged")

    return simulate(algorithm, problem, rounds=rounds, evaluate_every=every, on_evaluation=observe, progress=False,
                    name="Newton")


def mean_fit_sums(problem: RegressionProblem, w: NDArray[np.float64], errors: Errors) -> FitSums:
    """The means over all rows at the estimates, with the scores that these errors need.

    Args:
        w: [P] the estimates.
    """
    estimates = jnp.asarray(np.nan_to_num(w))
    sums: FitSums = _mean_fit_sums(problem, estimates, None)
    if errors in LEVERAGE_POWERS:
        inverse = inverse_of(jnp.sum(problem.sizes) * sums.information)
        sums = _mean_fit_sums(problem, estimates, ScoreWeights(inverse, LEVERAGE_POWERS[errors]))
    return sums


@jax.jit
def _mean_fit_sums(problem: RegressionProblem, w: jax.Array, weights: ScoreWeights | None) -> FitSums:
    """The mean over all rows: the mean over the parties by size."""
    shares = shares_by_size(problem.sizes)

    def add(total: Any, k: jax.Array) -> tuple[Any, None]:
        return jax.tree.map(lambda a, b: a + shares[k] * b, total, problem.oracle(k).fit_sums(w, weights)), None

    shapes = jax.eval_shape(lambda: problem.oracle(jnp.array(0)).fit_sums(w))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total: FitSums = jax.lax.scan(add, zero, jnp.arange(problem.sizes.shape[0]))[0]
    return total
