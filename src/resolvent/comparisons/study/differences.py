"""Paired differences of methods, with intervals, p-values that account for the number of comparisons, and effects."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.sites import measured_sites
from resolvent.comparisons.study.scores import last_scores, seed_means
from resolvent.errors import InputError, alternatives, quote
from resolvent.predict.intervals import Interval, Pool, mean_interval
from resolvent.predict.site_values import SEED

if TYPE_CHECKING:
    import pandas as pd

Unit = Literal["rows", "seeds", "parties"]
Values = NDArray[np.float64]
_NONE = Interval(np.nan, np.nan, np.nan)


class _Paired(NamedTuple):
    """The difference of two methods: its interval, its p-value, and the differences of the single units."""

    interval: Interval
    p_value: float
    units: Values


def unit_of(evidence: Evidence) -> Unit:
    """What the differences are paired by unless the caller says: test rows, without them seeds, or parties."""
    if evidence.rows is not None:
        return "rows"
    return "seeds" if len(evidence.seeds) > 1 else "parties"


def differences(evidence: Evidence, reference: str | None = None, by: Unit | None = None) -> "pd.DataFrame":
    """The differences of all pairs of methods, or of all methods and a reference; see ``Study.differences``."""
    import pandas as pd

    methods, by = evidence.methods, unit_of(evidence) if by is None else by
    if reference is not None and reference not in methods:
        raise InputError(f"reference: there is no method {quote(reference)}{alternatives(reference, methods)}")
    if by == "rows" and evidence.rows is None:
        raise InputError('by="rows": the runs have no values of single test rows: pair by "seeds" or "parties"')
    pairs = list(itertools.combinations(methods, 2)) if reference is None else [
        (m, reference) for m in methods if m != reference]
    paired = _PAIRED[by](evidence, pairs)
    p_values = np.array([pair.p_value for pair in paired])
    columns = zip(pairs, paired, holm(p_values), benjamini_hochberg(p_values), strict=True)
    return pd.DataFrame([{
        "method": method, "reference": other, "difference": pair.interval.value, "low": pair.interval.low,
        "high": pair.interval.high, "p": pair.p_value, "holm": of_holm, "bh": of_hochberg,
        "effect": _effect(pair.units), "better": int((pair.units > 0).sum()), "worse": int((pair.units < 0).sum()),
        "units": len(pair.units)} for (method, other), pair, of_holm, of_hochberg in columns])


def holm(p_values: Sequence[float] | Values) -> Values:
    """[m] Holm's p-values: the i-th smallest times m - i + 1, made monotone; NaN stays NaN and does not count.

    Example:
        >>> from resolvent.comparisons.study.differences import holm
        >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
        [0.03, 0.06, 0.06]

    References:
        Holm: A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979.
    """
    return _corrected(p_values, lambda p: np.maximum.accumulate(p * np.arange(len(p), 0, -1)))


def benjamini_hochberg(p_values: Sequence[float] | Values) -> Values:
    """[m] Benjamini and Hochberg's p-values, which limit the share of false discoveries; NaN does not count.

    References:
        Benjamini, Hochberg: Controlling the false discovery rate, Journal of the Royal Statistical Society B 57, 1995.
    """
    return _corrected(p_values, lambda p: np.minimum.accumulate((p * len(p) / np.arange(1, len(p) + 1))[::-1])[::-1])


def _corrected(p_values: Sequence[float] | Values, function: Callable[[Values], Values]) -> Values:
    """The p-values after a correction of the sorted ones."""
    p = np.asarray(p_values, float)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    result = np.full(len(p), np.nan)
    result[order] = np.minimum(function(p[order]), 1.0)
    return result


def _effect(units: Values) -> float:
    """Cohen's d of paired values: their mean, divided by their standard deviation."""
    spread = float(np.std(units, ddof=1)) if len(units) > 1 else 0.0
    return float(np.mean(units)) / spread if spread > 0 else float("nan")


Pairs = Iterable[tuple[str, str]]


def _by_rows(evidence: Evidence, pairs: Pairs) -> list[_Paired]:
    """The mean over the sites of the difference on their test rows, resampled with the rows and the seeds."""
    assert evidence.rows is not None
    diverged = {m for m, values in evidence.rows.values.items() if np.isinf(values).any()}
    results = []
    for pair in pairs:
        pool, limits, units = Pool(), list[Values](), list[Values]()
        if diverged.isdisjoint(pair):
            for _, rows, site in measured_sites(evidence, pair, pair[1]):
                if site.is_finite:
                    gain = site.sample._replace(**{name: value[2:] for name, value in site.sample._asdict().items()})
                    pool.add(gain, 1.0)
                    limits.append(site.limits[2:])
                    sign = 1.0 if evidence.higher_is_better else -1.0
                    units.append(sign * np.nanmean(rows.values[pair[0]] - rows.values[pair[1]], axis=0))
        if pool.is_empty:
            results.append(_Paired(_NONE, np.nan, np.zeros(0)))
        else:
            ends = np.stack(limits)
            bounds = np.stack([ends[..., 0].min(axis=0), ends[..., 1].max(axis=0)], axis=1)
            results.append(_Paired(pool.intervals(SEED, bounds)[0], float(pool.p_values(SEED)[0]),
                                   np.concatenate(units)))
    return results


def _by_seeds(evidence: Evidence, pairs: Pairs) -> list[_Paired]:
    return _of_units(evidence, pairs, seed_means(evidence))


def _by_parties(evidence: Evidence, pairs: Pairs) -> list[_Paired]:
    return _of_units(evidence, pairs, last_scores(evidence).groupby(level="method", sort=False).mean())


_PAIRED: dict[str, Any] = {"rows": _by_rows, "seeds": _by_seeds, "parties": _by_parties}


def _of_units(evidence: Evidence, pairs: Pairs, table: "pd.DataFrame") -> list[_Paired]:
    """Student's paired test on the columns of a table, whose rows are the methods."""
    sign, results = 1.0 if evidence.higher_is_better else -1.0, []
    for method, other in pairs:
        both = table.loc[[method, other]].to_numpy(float)
        both = both[:, ~np.isnan(both).any(axis=0)]
        if not both.size or np.isinf(both).any():
            results.append(_Paired(_NONE, np.nan, np.zeros(0)))
            continue
        units = sign * (both[0] - both[1])
        results.append(_Paired(mean_interval(units), _student(units), units))
    return results


def _student(units: Values) -> float:
    """The two-sided p-value of Student's paired test; NaN for one unit, or if all differences are equal."""
    from scipy.special import stdtr  # here, because its import takes 0.1 s, and a run does not need it

    if len(units) < 2:
        return float("nan")
    error = float(np.std(units, ddof=1)) / np.sqrt(len(units))
    if error == 0:
        return 1.0 if not units.any() else float("nan")
    return float(2 * stdtr(len(units) - 1, -abs(float(np.mean(units))) / error))
