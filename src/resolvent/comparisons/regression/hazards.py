"""What follows a Cox regression where all rows are in one table: baselines, curves, and proportional hazards."""

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.fit import Fit, rows_of
from resolvent.comparisons.regression.rows import RegressionRows
from resolvent.errors import InputError, alternatives, quote
from resolvent.regression.cox import CoxRegression

if TYPE_CHECKING:
    import pandas as pd

    from resolvent.comparisons.regression.predictions import Predictor

Clock: TypeAlias = Literal["km", "rank", "identity", "log"]


def baseline(fit: Fit) -> "pd.DataFrame":
    """The baseline hazard of each site and stratum, see ``Regression.baseline``."""
    import pandas as pd

    if ends := fit.model.baseline_times:
        hazard = np.cumsum(np.exp(fit.estimates[-len(ends) - 1:]))
        return pd.DataFrame({"site": "all", "stratum": "", "time": [*ends, np.inf], "hazard": hazard,
                             "survival": np.exp(-hazard)})
    rows, tables = _rows_of_cox(fit), []
    names = np.repeat("", len(rows.y)).astype(object) if rows.strata is None else rows.levels[str(fit.model.strata)]
    sites = np.repeat(np.array(fit.model.sites, object), rows.sizes)
    weights = np.ones(len(rows.y)) if rows.weights is None else rows.weights
    risk = weights * np.exp(_linear(fit, rows))
    for site in fit.model.sites:
        for name in np.unique(names[sites == site].astype(str)):
            chosen = (sites == site) & (names == name)
            has_event = chosen & _event(rows)
            times, place = np.unique(rows.y[has_event], return_inverse=True)
            events = np.bincount(place, weights=weights[has_event])
            total = _sum_from(rows.y[chosen], risk[chosen], times)
            if rows.entry is not None:
                total = total - _sum_from(rows.entry[chosen], risk[chosen], times)
            hazard = np.cumsum(events / total)
            tables.append(pd.DataFrame({"site": site, "stratum": name, "time": times, "hazard": hazard,
                                        "survival": np.exp(-hazard)}))
    table: pd.DataFrame = pd.concat(tables, ignore_index=True)
    return table


def survival_curves(fit: Fit, predictor: "Predictor", frame: "pd.DataFrame") -> "pd.DataFrame":
    """The survival of new rows at each site and stratum, see ``Regression.survival``."""
    import pandas as pd

    known, ratios = baseline(fit), predictor.predict(frame)["prediction"]
    curves: pd.DataFrame = pd.concat([known] * len(ratios), ignore_index=True)
    curves.insert(0, "row", np.repeat(np.asarray(ratios.index), len(known)))
    curves["survival"] = np.exp(-curves["hazard"] * np.repeat(ratios.to_numpy(), len(known)))
    return curves.drop(columns="hazard")


def proportional_hazards(fit: Fit, clock: Clock = "km") -> "pd.DataFrame":
    """The test of each coefficient against one that changes with the time, see ``Regression.proportional_hazards``."""
    import pandas as pd
    from scipy.stats import chi2

    if clock not in get_args(Clock):
        raise InputError(f"clock={quote(clock)} is not known{alternatives(clock, get_args(Clock))}")
    rows = _rows_of_cox(fit)
    if rows.weights is not None:
        raise InputError("the test of proportional hazards takes no weights: fit without frequency_weights "
                         "and sampling_weights, and test that model")
    with jax.enable_x64(True):
        problem = rows.problem()
        assert isinstance(problem, CoxRegression)
        residuals = np.asarray(problem.event_residuals(jnp.asarray(fit.estimates)))
    event = _event(rows)
    g = _clock_times(rows, clock)[event]
    g, known, events = g - g.mean(), fit.identification.is_identified, int(event.sum())
    score, scale = g @ residuals[event][:, known], float(g @ g) / events
    inverse = fit.identification.inverse[np.ix_(known, known)]
    each = (inverse @ score)**2 / np.diag(inverse) / scale
    statistics = np.array([*each, score @ inverse @ score / scale])
    degrees = np.array([*np.ones(len(each), int), len(each)])
    return pd.DataFrame({"statistic": statistics, "degrees of freedom": degrees, "p": chi2.sf(statistics, degrees)},
                        index=[*np.array(fit.names, object)[known], "all"])


def _rows_of_cox(fit: Fit) -> RegressionRows:
    if fit.model.baseline_times:
        raise InputError("residuals at the times of events are of a Cox model with a baseline for each site: fit "
                         "without baseline_times")
    if fit.model.family is not None:
        raise InputError(f"a regression of the family {fit.family} has no hazards: Surv(time, event) on the left side "
                         "of the formula fits a Cox model")
    if any(fit.penalties):
        raise InputError("a Cox model with a penalty has no covariance and no unbiased residuals: leave l1 and l2 out")
    return rows_of(fit)


def _event(rows: RegressionRows) -> NDArray[np.bool_]:
    assert rows.event is not None
    return rows.event


def _linear(fit: Fit, rows: RegressionRows) -> NDArray[np.float64]:
    """[rows] x'beta + offset, without columns that have no estimate."""
    beta = np.where(fit.identification.is_identified, fit.estimates, 0.0)
    return np.asarray(rows.x @ beta + (0.0 if rows.offsets is None else rows.offsets), np.float64)


def _sum_from(of_rows: NDArray[np.float64], values: NDArray[np.float64],
              times: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each time the sum of the values of rows whose own time is not smaller."""
    order = np.argsort(-of_rows, kind="stable")
    sums = np.append(0.0, np.cumsum(values[order]))
    return np.asarray(sums[np.searchsorted(-of_rows[order], -times, side="right")], np.float64)


def _clock_times(rows: RegressionRows, clock: Clock) -> NDArray[np.float64]:
    """[rows] the times on a clock."""
    from scipy.stats import rankdata

    if clock == "rank":
        ranks = np.zeros(len(rows.y))
        ranks[_event(rows)] = rankdata(rows.y[_event(rows)])
        return ranks
    if clock == "log":
        return np.asarray(np.log(rows.y), np.float64)
    if clock == "identity":
        return rows.y
    times, events = np.unique(rows.y[_event(rows)], return_counts=True)
    at_risk = _sum_from(rows.y, np.ones(len(rows.y)), times)
    if rows.entry is not None:
        at_risk = at_risk - _sum_from(rows.entry, np.ones(len(rows.y)), times)
    before = np.append(1.0, np.cumprod(1 - events / at_risk))
    return np.asarray(1 - before[np.searchsorted(times, rows.y)], np.float64)
