"""Likelihood-ratio tests and profile intervals of a fitted regression, by further rounds of its sums."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from resolvent.comparisons.regression.fit import Fit, Likelihoods, rows_of
from resolvent.comparisons.regression.hypotheses import (
    HypothesisTest,
    check_known,
    constraints_of,
    coordinates_of,
)
from resolvent.comparisons.regression.laws import beyond, quantile
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.sums import rounds_of
from resolvent.errors import InputError, quote
from resolvent.regression.constrained import ConstrainedFits, ConstrainedState, Constraints


def _constrained_fits(model: RegressionModel, hypotheses: tuple[str, ...], profile: tuple[str, ...], rise: float, *,
                      firth: bool) -> ConstrainedFits:
    """The algorithm that fits under each hypothesis, and searches the ends of each interval."""
    p = len(model.names)
    parts = [coordinates_of(text, model) for text in hypotheses]
    turn, is_free, fixed = ([part[i] for part in parts] for i in range(3))
    constraints = Constraints(np.reshape(np.array(turn, float), (-1, p, p)),
                              np.reshape(np.array(is_free, bool), (-1, p)), np.reshape(np.array(fixed, float), (-1, p)))
    return ConstrainedFits(constraints, tuple(model.names.index(name) for name in profile), rise,
                           firth=sum(model.site_rows) if firth else None)


def search(fit: Fit, hypotheses: tuple[str, ...], profile: tuple[str, ...], rounds: int = 40) -> Likelihoods:
    """Fit under each hypothesis, and search the ends of each interval, where all rows are in one table."""
    check(fit, profile)
    with jax.enable_x64(True):
        problem = eqx.tree_at(lambda p: p.start, rows_of(fit).problem(), jnp.asarray(np.nan_to_num(fit.estimates)))
        algorithm = _constrained_fits(fit.model, hypotheses, profile, _rise_of(fit), firth=fit.firth)
        result = rounds_of(algorithm, problem, rounds, 2, lambda state: bool(state.has_ended))
        return _likelihoods_of(algorithm.positions, result.state.server)


def _likelihoods_of(positions: Sequence[int], state: ConstrainedState) -> Likelihoods:
    """What the searches have found, from their last state."""
    points = np.asarray(state.ends.point)[np.arange(2 * len(positions)), np.repeat(np.array(positions, int), 2)]
    return Likelihoods(np.asarray(state.rises),
                       np.where(np.asarray(state.ends.has_converged), points, np.nan).reshape(-1, 2))


def _rise_of(fit: Fit) -> float:
    """How much the mean loss rises to the ends of a profile interval: by q^2 / 2n, times the dispersion.

    q is the quantile of the normal distribution, or of t where the table has t statistics.
    """
    reach = float(quantile(fit.level, fit.degrees_of_freedom_of_tests))
    return fit.dispersion * reach**2 / (2 * fit.count)


def ratio_test(fit: Fit, hypothesis: str, rise: float) -> HypothesisTest:
    """The likelihood-ratio test from the rise of the mean loss; with a dispersion the F test of the deviances."""
    matrix, _ = constraints_of(hypothesis, fit.model)
    check_known(fit, hypothesis, matrix)
    if np.isnan(rise):
        raise InputError(f"{quote(hypothesis)}: the fit under it has not converged")
    q, rest, statistic = len(matrix), fit.degrees_of_freedom_of_tests, 2 * fit.count * rise / fit.dispersion
    statistic = statistic if rest is None else statistic / q
    return HypothesisTest(hypothesis, statistic, q, rest, beyond(statistic, q, rest), np.nan, np.nan, np.nan, np.nan,
                          "Likelihood-ratio")


def check(fit: Fit, profile: tuple[str, ...] = ()) -> None:
    """Refuse fits that have no likelihood to compare, and intervals of coefficients that have no estimate."""
    if any(fit.penalties) or fit.errors != "model" or not fit.has_likelihood:
        raise InputError("likelihood-ratio tests and profile intervals are of the likelihood of a fit without l1, l2, "
                         "sampling_weights, quasi_poisson and other errors than those of the model: leave these "
                         "settings out, or test with fit.test (tests in a file), which is Wald's")
    unknown = [name for name in profile if not fit.identification.is_identified[fit.names.index(name)]]
    if unknown:
        raise InputError(f"there is no estimate of {quote(unknown[0])}, and so no profile interval")
