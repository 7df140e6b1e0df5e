"""The judgement of each site: the methods' scores and gains with intervals, and the method that it should use."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.problem.metrics.intervals import Interval, Pool, Sample, interval_of, resample, seed_interval
from resolvent.study.row_values import RowValues, SiteRows

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FEW_ROWS", "Decision", "Evidence", "Means", "SiteJudgement", "Sites", "judge_sites"]

FEW_ROWS = 20  # a site with fewer test rows is marked
_SEED = 20_240_229  # seed of the bootstrap

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Evidence:
    """The measurements by which methods are judged.

    Attributes:
        score: the metric that compares the methods.
        split: the split on which they are judged.
        higher_is_better: whether larger values are better.
        methods: labels of the methods.
        alone: the label of training alone, or None.
        parties: the names of the sites, by id.
        metrics: all metrics; with the columns seed, method, round, party, split, metric and value.
        seeds: the seeds of the runs.
        rows: the values of single test rows; None if the problem has none.
        baseline: the label of the predictions that need no training, if the rows have it.
    """

    score: str
    split: str
    higher_is_better: bool
    methods: tuple[str, ...]
    alone: str | None
    parties: Sequence[str] | Mapping[int, str]
    metrics: "pd.DataFrame"
    seeds: tuple[int, ...]
    rows: RowValues | None = None
    baseline: str | None = None

    def last(self, metric: str, split: str) -> "pd.Series":
        """The values of a metric at the last evaluation, by (method, seed, party)."""
        rows = self.metrics[(self.metrics["metric"] == metric) & (self.metrics["split"] == split)]
        rows = rows[rows["round"] == rows.groupby(["method", "seed"])["round"].transform("max")]
        values: pd.Series = rows.set_index(["method", "seed", "party"])["value"].astype(float)
        return values


class Decision(NamedTuple):
    """The method that a site should use.

    Each seed chooses a method by the score on the site's validation rows. The choice is judged on test rows.

    Attributes:
        method: the method to use; training alone, unless the interval of the gain is above zero.
        chosen: the method that most seeds chose; None without validation rows.
        chosen_in: number of seeds that chose it.
        gain: mean gain over training alone, on test rows, of the method that each seed chose.
    """

    method: str
    chosen: str | None
    chosen_in: int
    gain: Interval


class SiteJudgement(NamedTuple):
    """The outcome at one site.

    Attributes:
        party: id of the site.
        name: name of the site.
        test_rows: number of different rows on which models were tested.
        scores: the score of each method and of the baseline.
        gains: the gain of each method and of the baseline over training alone; positive values are better for every
            score.
        decision: the method to use; None without training alone among the methods.
    """

    party: int
    name: str
    test_rows: int
    scores: dict[str, Interval]
    gains: dict[str, Interval]
    decision: Decision | None

    @property
    def has_few_rows(self) -> bool:
        """Whether the test rows are so few that only large differences can be detected."""
        return 0 < self.test_rows < FEW_ROWS


class Means(NamedTuple):
    """Means over the sites.

    Attributes:
        plain: mean scores, with equal weights of the sites.
        weighted: mean scores, weighted by the sites' numbers of test rows.
        plain_gains: mean gains over training alone, with equal weights of the sites.
        weighted_gains: mean gains over training alone, weighted by the sites' numbers of test rows.
    """

    plain: dict[str, Interval]
    weighted: dict[str, Interval]
    plain_gains: dict[str, Interval]
    weighted_gains: dict[str, Interval]


@dataclass(frozen=True, eq=False)
class Sites:
    """The outcome at all sites.

    Attributes:
        sites: one judgement per site.
        means: means over the sites; None without test rows, or if a method diverged.
    """

    sites: tuple[SiteJudgement, ...]
    means: Means | None


def judge_sites(evidence: Evidence) -> Sites:
    """Judge every method at every site, by its test rows, or without them by the scores of several seeds."""
    choices = _choices(evidence)
    if evidence.rows is None:
        return Sites(tuple(_by_seeds(evidence, choices)), None)
    sites, pools, limits = [], (Pool(), Pool()), []
    for party, rows in evidence.rows.sites():
        rng = np.random.default_rng([_SEED, party])  # so that other sites do not change the rows drawn at this site
        site = _SiteValues.of(evidence, rows, choices.get(party))
        sample = resample(site.values, rows.is_tested, site.bounds, rng)
        intervals = [site.diverged.get(i, interval) for i, interval in enumerate(
            interval_of(sample, rng, site.limits))]
        tested = rows.is_tested.shape[1]
        if site.is_finite:
            for pool, weight in zip(pools, (1.0, rows.is_tested.sum() / len(evidence.seeds)), strict=True):
                pool.add(Sample(*(part[:site.pooled] for part in sample)), weight)
            limits.append(site.limits)
        sites.append(_site(evidence, party, tested, site, intervals, choices.get(party)))
    has_diverged = any(np.isinf(i.value) for s in sites for i in (*s.scores.values(), *s.gains.values()))
    if has_diverged or pools[0].is_empty:
        return Sites(tuple(sites), None)
    is_limited = all(of_site is not None for of_site in limits)
    return Sites(tuple(sites), _means(evidence, pools, limits[0] if is_limited else None))


def _choices(evidence: Evidence) -> dict[int, list[str]]:
    """Party -> the method with the best validation score of each seed; ties go to training alone, then to the first."""
    if evidence.alone is None:
        return {}
    order = [evidence.alone, *(m for m in evidence.methods if m != evidence.alone)]
    scores = evidence.last(evidence.score, "validation")
    if scores.empty:
        return {}
    scores = scores.fillna(-np.inf if evidence.higher_is_better else np.inf)
    table = scores.unstack("method")
    table = table[[m for m in order if m in table]] * (1 if evidence.higher_is_better else -1)
    best = table.fillna(-np.inf).idxmax(axis=1)  # for equal scores, the first column
    choices: dict[int, list[str]] = {}
    for party, method in zip(best.index.get_level_values("party"), best, strict=True):  # by seed, then by party
        choices.setdefault(int(party), []).append(str(method))
    return {party: chosen for party, chosen in choices.items() if len(chosen) == len(evidence.seeds)}


class _SiteValues(NamedTuple):
    """The quantities of a site: the scores of M methods, the gains, and the gain of the chosen methods.

    Attributes:
        values: [Q, S, n] the value of each row and seed; values that are not finite are replaced by 0.
        bounds: [Q, 2] the smallest and the largest value of a row.
        limits: [Q, 2] the smallest and the largest possible mean if all values are 0 or 1; otherwise None.
        diverged: quantity with a value that is not finite -> its interval.
        methods: the methods, and the baseline.
        others: the methods that have a gain: all except training alone.
        pooled: number of quantities that are averaged over sites.
    """

    values: Values
    bounds: Values
    limits: Values | None
    diverged: dict[int, Interval]
    methods: tuple[str, ...]
    others: tuple[str, ...]
    pooled: int

    @property
    def is_finite(self) -> bool:
        return not self.diverged

    @classmethod
    def of(cls, evidence: Evidence, rows: SiteRows, chosen: list[str] | None) -> "_SiteValues":
        methods = _methods_of(evidence)
        others = tuple(m for m in methods if m != evidence.alone) if evidence.alone is not None else ()
        sign = 1.0 if evidence.higher_is_better else -1.0
        tested = rows.is_tested
        scores = [rows.values[m] for m in methods]
        finite = np.concatenate([s[tested] for s in scores])
        is_binary = bool(np.isin(finite, (0.0, 1.0)).all())
        finite = finite[np.isfinite(finite)]
        limits = (0.0, 1.0) if is_binary else (finite.min(initial=np.inf), finite.max(initial=-np.inf))
        bounds = [limits] * len(methods)
        values = list(scores)
        if evidence.alone is not None:
            alone = rows.values[evidence.alone]
            gains = [_difference(rows.values[m], alone, sign) for m in others]
            if chosen is not None:
                picked = np.stack([rows.values[m][s] for s, m in enumerate(chosen)])
                gains.append(_difference(picked, alone, sign))
            values += gains
            for gain in gains:
                size = np.abs(gain[tested])
                largest = 1.0 if is_binary else float(size[np.isfinite(size)].max(initial=0.0))
                bounds.append((-largest, largest))
        stacked = np.stack(values)
        diverged = {i: _not_finite(stacked[i][tested]) for i in range(len(values))
                    if not np.isfinite(stacked[i][tested]).all()}
        limited = np.where(np.isfinite(np.asarray(bounds)), bounds, 0.0)
        return cls(np.where(np.isfinite(stacked), stacked, 0.0), limited, limited if is_binary else None, diverged,
                   methods, others, len(methods) + len(others))


def _difference(values: Values, alone: Values, sign: float) -> Values:
    """The gain of each row; the gain is 0 if both values are the same infinity."""
    with np.errstate(invalid="ignore"):
        gain = sign * (values - alone)
    return np.where(np.isinf(values) & (values == alone), 0.0, gain)


def _not_finite(values: Values) -> Interval:
    """The interval of a mean that is infinite, or not defined."""
    mean = float(np.nan if np.isnan(values).any() else values[np.isinf(values)].sum())
    return Interval(mean, mean, mean)


def _methods_of(evidence: Evidence) -> tuple[str, ...]:
    return (*evidence.methods, *(() if evidence.baseline is None else (evidence.baseline,)))


def _site(evidence: Evidence, party: int, tested: int, site: _SiteValues, intervals: list[Interval],
          chosen: list[str] | None) -> SiteJudgement:
    first = len(site.methods)
    gains = dict(zip(site.others, intervals[first:], strict=False))
    gain = intervals[site.pooled] if chosen is not None else Interval(np.nan, np.nan, np.nan)
    scores = dict(zip(site.methods, intervals, strict=False))
    return SiteJudgement(party, evidence.parties[party], tested, scores, gains, _decide(evidence, chosen, gain))


def _decide(evidence: Evidence, chosen: list[str] | None, gain: Interval) -> Decision | None:
    if evidence.alone is None:
        return None
    if chosen is None:
        return Decision(evidence.alone, None, 0, gain)
    if set(chosen) == {evidence.alone}:
        return Decision(evidence.alone, evidence.alone, len(chosen), Interval(0.0, 0.0, 0.0))
    counts = Counter(chosen)
    order = [m for m in evidence.methods if m in counts and m != evidence.alone]
    favourite = max([*order, *([evidence.alone] if evidence.alone in counts else [])], key=lambda m: counts[m])
    return Decision(favourite if gain.sign > 0 else evidence.alone, favourite, counts[favourite], gain)


def _means(evidence: Evidence, pools: tuple[Pool, Pool], limits: Values | None) -> Means:
    """The means over the sites at which the score is defined.

    Args:
        evidence: the measurements.
        pools: the sites with equal weights, and weighted by their test rows.
        limits: [Q, 2] the smallest and the largest possible mean; None: no limits.
    """
    methods = _methods_of(evidence)
    others = [m for m in methods if m != evidence.alone] if evidence.alone is not None else []
    limits = None if limits is None else limits[:len(methods) + len(others)]
    plain, weighted = (pool.intervals(_SEED, limits) for pool in pools)
    return Means(dict(zip(methods, plain, strict=False)), dict(zip(methods, weighted, strict=False)),
                 dict(zip(others, plain[len(methods):], strict=False)),
                 dict(zip(others, weighted[len(methods):], strict=False)))


def _by_seeds(evidence: Evidence, choices: Mapping[int, list[str]]) -> list[SiteJudgement]:
    """Judgements from the scores of several seeds, without values of single rows; differences are paired by seed."""
    if len(evidence.seeds) < 2:
        return []
    scores = evidence.last(evidence.score, evidence.split).unstack("seed")
    parties = sorted({int(p) for p in scores.index.get_level_values("party")})
    sign = 1.0 if evidence.higher_is_better else -1.0
    judgements = []
    for party in parties:
        of_party = scores.xs(party, level="party")
        values: dict[str, Any] = {m: of_party.loc[m].to_numpy(dtype=float) for m in evidence.methods}
        gains: dict[str, Interval] = {}
        gain = Interval(np.nan, np.nan, np.nan)
        if evidence.alone is not None:
            gains = {m: seed_interval(_difference(values[m], values[evidence.alone], sign))
                     for m in evidence.methods if m != evidence.alone}
            if party in choices:
                picked = np.array([values[m][s] for s, m in enumerate(choices[party])])
                gain = seed_interval(_difference(picked, values[evidence.alone], sign))
        judgements.append(SiteJudgement(party, evidence.parties[party], 0,
                                        {m: seed_interval(v) for m, v in values.items()}, gains,
                                        _decide(evidence, choices.get(party), gain)))
    return judgements
