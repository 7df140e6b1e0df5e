"""Multiple imputation by chained equations at each site, and the rules by which the fits are pooled."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.agreement import (
    CLASS_FAMILIES,
    count_levels,
    event_values,
    is_category,
    level_names,
)
from resolvent.comparisons.regression.formula import Formula
from resolvent.comparisons.regression.identification import Identification
from resolvent.comparisons.regression.label_numbers import numbers_of, times_of
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_CYCLES = 5  # over the columns with missing values, as in R's mice
_DONORS = 5  # rows with the closest predictions, and those as close, of which one gives its value
_RIDGE = 1e-5  # of the squares of a column, as in R's mice
_STEPS = 25  # of Newton's method for classes, each by at most 1 in a coefficient
_SMALL = 1e-6  # step with which it ends
_PRIOR = 2.5  # standard deviation of the coefficients of classes, for columns of variance 1: finite where rows separate


@dataclass(frozen=True, eq=False)
class Imputations:
    r"""The fits of m completed tables, pooled by Rubin's rules.

    .. math:: T = W + (1 + 1/m) B, \qquad \lambda = 1 - W/T

    Source: Rubin, *Multiple imputation for nonresponse in surveys*, 1987.

    Attributes:
        count: m, the number of completed tables.
        within: [P, P] W, the mean of the covariances of their estimates.
        between: [P, P] B, the covariance of their estimates.
        freedom: degrees of freedom that the tests of a complete table would have.
        rows: site -> the number of rows in which a value was imputed.
        identification: what all tables can tell.
    """

    count: int
    within: NDArray[np.float64]
    between: NDArray[np.float64]
    freedom: float
    rows: Mapping[str, int]
    identification: Identification

    @property
    def covariance(self) -> NDArray[np.float64]:
        """[P, P] T, the covariance of the pooled estimates."""
        return np.asarray(self.within + (1 + 1 / self.count) * self.between)


def pooled_freedom(total: NDArray[np.float64], within: NDArray[np.float64], count: int,
                   complete: float) -> NDArray[np.float64]:
    r"""The degrees of freedom of pooled t statistics.

    .. math:: \nu_m = \frac{m-1}{\lambda^2}, \qquad \nu_o = \frac{\nu_c + 1}{\nu_c + 3} \nu_c (1 - \lambda), \qquad
              \nu = \frac{\nu_m \nu_o}{\nu_m + \nu_o}

    Source: Barnard, Rubin, *Small-sample degrees of freedom with multiple imputation*, Biometrika, 1999.

    Args:
        total: T, the variances of combinations of the estimates.
        within: W, of the same combinations.
        count: m.
        complete: nu_c, the degrees of freedom of a complete table.
    """
    share = 1 - np.divide(within, total, out=np.ones_like(total), where=total > 0)
    observed = (complete + 1) / (complete + 3) * complete * (1 - share)
    return np.asarray(1 / (share**2 / (count - 1) + 1 / observed))


def joint_test(within: NDArray[np.float64], total: NDArray[np.float64],
               count: int) -> tuple[NDArray[np.float64], float | None]:
    r"""For the test of q > 1 combinations: their covariance, and the degrees of freedom of the F statistic.

    .. math:: r = \mathrm{tr}((T - W) W^{-1}) / q, \qquad (1 + r) W, \qquad
              4 + (t - 4) \big(1 + (1 - 2/t)/r\big)^2 \text{ with } t = q (m - 1) > 4

    so that only the mean rise r of the variances is estimated from the imputations, and not a matrix.

    Source: Li, Raghunathan, Rubin, *Large-sample significance levels from multiply imputed data using moment-based
    statistics and an F reference distribution*, 1991.

    Args:
        within: [q, q] W of the combinations.
        total: [q, q] T of the combinations.
        count: m.

    Returns:
        The covariance, and the degrees of freedom; None: the tables are equal, and the statistic is chi-squared.
    """
    q = len(within)
    rise, t = float(np.trace(np.linalg.solve(within, total - within))) / q, q * (count - 1)
    if rise <= 0:
        return within, None
    freedom = 4 + (t - 4) * (1 + (1 - 2 / t) / rise)**2 if t > 4 else t * (1 + 1 / q) * (1 + 1 / rise)**2 / 2
    return (1 + rise) * within, freedom


def impute(frame: "pd.DataFrame", formula: Formula, settings: RegressionSettings, owners: NDArray[Any],
           number: int) -> "pd.DataFrame":
    """The table with values in the gaps of the formula's columns, drawn at each site from models of its own rows.

    Rows without a label, offset, weight, stratum or cluster keep their gaps: a drawn label tells nothing that the drawn
    columns do not (von Hippel, *Regression with missing Ys*, 2007).

    Args:
        frame: the columns that are used, as they were read.
        owners: [rows] the site of each row.
        number: of the completed table; each has draws of its own.

    Raises:
        InputError: the formula has ``poly()``.
    """
    check_completable(formula)
    completed = {name: frame[name].copy() for name in formula.variables}
    is_usable = np.asarray(frame[[*formula.response.columns, *settings.columns]].notna().all(axis=1))
    event = formula.response.event
    occurred = None if event is None else event_values(event, count_levels(frame[event].dropna()), settings)[1]
    for site in dict.fromkeys(owners.tolist()):
        rows = np.flatnonzero((owners == site) & is_usable)
        rng = np.random.default_rng([settings.seed, number, *str(site).encode()])
        for name, values in _chain(frame.iloc[rows], formula, settings, occurred, rng).items():
            completed[name].iloc[rows] = values
    return frame.assign(**completed)


def check_completable(formula: Formula) -> None:
    """Refuse a formula with ``poly()``."""
    if formula.degrees:
        raise InputError("poly() has other columns in each completed table, since they are orthogonal over its rows: "
                         "write powers, such as I(age**2), or leave imputations out")


def has_draws(frame: "pd.DataFrame", completed: "pd.DataFrame") -> NDArray[np.bool_]:
    """[rows] whether a row is complete, and has a value where the table has a gap."""
    return np.asarray((frame.isna() & completed.notna()).any(axis=1) & completed.notna().all(axis=1))


def _chain(rows: "pd.DataFrame", formula: Formula, settings: RegressionSettings, occurred: str | None,
           rng: np.random.Generator) -> dict[str, Any]:
    """Column with gaps -> [rows] its values, with draws in the gaps; a column without any value keeps its gaps.

    The predictors of a column are all others, the label among them: without it the draws would be independent of the
    label, and coefficients biased towards zero (Moons et al., *Using the outcome for imputation of missing predictor
    values was preferred*, 2006).
    """
    import pandas as pd

    gaps = {name: np.asarray(rows[name].isna()) for name in formula.variables}
    gaps = {name: gap for name, gap in gaps.items() if gap.any() and not gap.all()}
    if not gaps:
        return {}
    others = [name for name in (*settings.columns, *formula.variables) if rows[name].notna().all()]
    if settings.cluster in others:
        others.remove(settings.cluster)
    fixed, values, levels = [_outcome(rows, formula, settings, occurred)], dict[str, NDArray[Any]](), dict[str, Any]()
    for name in (*others, *gaps):
        if name in formula.categories or name == settings.strata or is_category(rows[name]):
            values[name], levels[name] = pd.factorize(rows[name])
        else:
            values[name] = rows[name].to_numpy(np.float64, copy=True, na_value=np.nan)
    fixed += [_features(values[name], is_class=name in levels) for name in others]
    features = dict[str, NDArray[np.float64]]()
    for name, gap in gaps.items():
        values[name][gap] = rng.choice(values[name][~gap], gap.sum())
        features[name] = _features(values[name], is_class=name in levels)
    for _ in range(_CYCLES if len(gaps) > 1 else 1):
        for name, gap in gaps.items():
            x = np.column_stack([*fixed, *(of for other, of in features.items() if other != name)])
            draw = _draw_classes if name in levels else _draw_numbers
            values[name][gap] = draw(x[~gap], values[name][~gap], x[gap], rng)
            features[name] = _features(values[name], is_class=name in levels)
    return {name: levels[name].take(values[name]) if name in levels else values[name] for name in gaps}


def _outcome(rows: "pd.DataFrame", formula: Formula, settings: RegressionSettings,
             occurred: str | None) -> NDArray[np.float64]:
    """[rows, q] the label as predictors: of times, whether the event occurred and the cumulative hazard by Nelson and
    Aalen up to the time (White, Royston, *Imputing missing covariate values for the Cox model*, 2009).
    """
    import pandas as pd

    response, label = formula.response, rows[formula.response.label]
    if response.event is None:
        if is_category(label) or settings.family in CLASS_FAMILIES:
            return _features(pd.factorize(label)[0], is_class=True)
        return _features(numbers_of(label, "any"), is_class=False)
    event = np.asarray(level_names(rows[response.event]) == occurred, bool)
    stop, start = times_of(rows, response)
    times, place = np.unique(stop[event], return_inverse=True)
    at_risk = len(stop) - np.searchsorted(np.sort(stop), times)
    if start is not None:
        at_risk = at_risk - (len(start) - np.searchsorted(np.sort(start), times))
    hazard = np.append(0.0, np.cumsum(np.bincount(place) / at_risk))
    exposure = hazard[np.searchsorted(times, stop, side="right")]
    if start is not None:
        exposure = exposure - hazard[np.searchsorted(times, start, side="right")]
    return _features(np.column_stack([event, exposure]), is_class=False)


def _features(values: NDArray[Any], *, is_class: bool) -> NDArray[np.float64]:
    """[rows, q] a column as predictors of mean 0 and variance 1; zero where it is constant."""
    x = np.eye(values.max() + 1)[values] if is_class else values.reshape(len(values), -1).astype(np.float64)
    deviation = x.std(axis=0)
    return np.asarray((x - x.mean(axis=0)) / np.where(deviation > 0, deviation, 1))


def _draw_numbers(x: NDArray[np.float64], y: NDArray[np.float64], new: NDArray[np.float64],
                  rng: np.random.Generator) -> NDArray[np.float64]:
    """Predictive mean matching: a gap gets the value of a row whose prediction is close to its own.

    So each value is one that occurs: a whole number, a positive one, one within the bounds of a spline. The
    predictions of gaps have coefficients that are drawn from their posterior.

    Source: Little, *Missing-data adjustments in large surveys*, 1988; van Buuren, *Flexible imputation*, 2018, 3.4.
    """
    x, new = (np.column_stack([np.ones(len(part)), part]) for part in (x, new))
    gram = x.T @ x
    inverse = np.linalg.inv(gram + _RIDGE * np.diag(np.maximum(np.diag(gram), 1)))
    beta = inverse @ (x.T @ y)
    variance = np.sum((y - x @ beta)**2) / rng.chisquare(max(len(y) - len(beta), 1))
    drawn = beta + np.sqrt(variance) * np.linalg.cholesky(inverse) @ rng.normal(size=len(beta))
    order, goals = np.argsort(x @ beta), new @ drawn
    known = (x @ beta)[order]
    first = np.clip(np.searchsorted(known, goals) - _DONORS, 0, max(len(known) - 2 * _DONORS, 0))
    near = known[first[:, None] + np.arange(min(2 * _DONORS, len(known)))]
    reach = np.sort(np.abs(near - goals[:, None]), axis=1)[:, :_DONORS][:, -1] + 1e-9 * np.abs(known).max()
    # Every row within reach can be the donor: where the predictors are classes, many rows have the same prediction.
    low, high = np.searchsorted(known, goals - reach), np.searchsorted(known, goals + reach, side="right")
    return np.asarray(y[order[rng.integers(low, high)]])


def _draw_classes(x: NDArray[np.float64], y: NDArray[np.int64], new: NDArray[np.float64],
                  rng: np.random.Generator) -> NDArray[np.int64]:
    """Classes with the probabilities of a logistic regression, whose coefficients are drawn from the normal
    approximation of their posterior.
    """
    classes, codes = np.unique(y, return_inverse=True)
    count = len(classes) - 1
    if not count:
        return np.full(len(new), y[0])
    x, new = (np.column_stack([np.ones(len(part)), part]) for part in (x, new))
    is_class = np.eye(count + 1)[codes, 1:]  # [n, K-1], without the first class, against which the others are
    beta, prior = np.zeros((count, x.shape[1])), np.append(0.0, np.full(x.shape[1] - 1, _PRIOR**-2))
    for _ in range(_STEPS):
        p = _probabilities(x @ beta.T)[:, 1:]
        gradient = (p - is_class).T @ x + prior * beta
        information = np.block([[(x * (p[:, a] * ((a == b) - p[:, b]))[:, None]).T @ x for b in range(count)]
                                for a in range(count)]) + np.diag(np.tile(prior, count))
        step = np.linalg.solve(information, gradient.ravel())
        beta -= (step / max(1.0, np.abs(step).max())).reshape(beta.shape)
        if np.abs(step).max() < _SMALL:
            break
    deviation = np.linalg.solve(np.linalg.cholesky(information).T, rng.normal(size=beta.size))
    p = _probabilities(new @ (beta + deviation.reshape(beta.shape)).T)
    return np.asarray(classes[(rng.random((len(new), 1)) > np.cumsum(p, axis=1)[:, :-1]).sum(axis=1)])


def _probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, K] the probabilities of the classes from [n, K-1] the logits against the first."""
    from scipy.special import softmax

    return np.asarray(softmax(np.column_stack([np.zeros(len(logits)), logits]), axis=1))
