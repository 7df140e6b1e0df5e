"""The judgement of each site: the methods' scores and gains, with their intervals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.judgement.metrics import is_share, range_of, run_columns
from resolvent.comparisons.judgement.power_forecast import Forecast
from resolvent.comparisons.judgement.row_values import RowValues
from resolvent.predict.intervals import Interval, Pool, mean_interval
from resolvent.predict.site_values import SEED, SiteRows, SiteValues, difference, measure_site, not_finite

if TYPE_CHECKING:
    import pandas as pd

FEW_ROWS = 20  # a site with fewer test rows is marked, and one with less than half as many of a class

CHOSEN = "the method that each fold chooses"  # label of its values among those of the test rows

Values = NDArray[np.float64]
Advice = Literal["join", "probably join", "no difference", "stay alone"]


@dataclass(frozen=True, eq=False)
class Evidence:
    """The measurements by which methods are judged.

    Attributes:
        higher_is_better: whether larger values are better.
        alone: the label of training alone, or None.
        parties: the names of the sites, by id.
        metrics: all metrics; with the columns seed, method, round, party, split, metric and value.
        rows: the values of single test rows; None if the problem has none.
        baseline: the label of the predictions that need no training, if the rows have it.
        train: number of training rows of each party, if they are known.
        traffic: method -> bytes that are sent in a run, if they are known.
        bounds: labels of the methods that train on pooled rows, which no federation can run.
        folds: number of folds of each seed; 1: one split of the rows.
        fold_choices: the method that the validation rows of each fold choose. The rows have its values as ``CHOSEN``.
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
    train: Sequence[int] | None = None
    traffic: Mapping[str, float] | None = None
    bounds: frozenset[str] = frozenset()
    folds: int = 1
    fold_choices: tuple[str, ...] = ()

    @property
    def candidates(self) -> tuple[str, ...]:
        """The labels of the methods that the federation can run."""
        return tuple(m for m in self.methods if m != self.alone and m not in self.bounds)

    @property
    def is_share(self) -> bool:
        """Whether the score lies between 0 and 1."""
        return is_share(self.score)

    def last(self, metric: str, split: str) -> "pd.Series":
        """The values of a metric at the last evaluation, by (method, seed, party)."""
        rows = self.metrics[(self.metrics["metric"] == metric) & (self.metrics["split"] == split)]
        rows = rows[rows["round"] == rows.groupby(["method", *run_columns(rows)])["round"].transform("max")]
        values: pd.Series = rows.set_index(["method", "seed", "party"])["value"].astype(float)
        return values


class Decision(NamedTuple):
    """What a site should do, see ``resolvent.comparisons.judgement.decisions``.

    Attributes:
        method: the method to use: that of the federation, or training alone.
        advice: ``join``, ``probably join``, ``no difference`` or ``stay alone``.
        probability: the probability that the site gains from the federation.
        federation: the method that the federation should run; None without validation rows.
        gain: gain of this method over training alone, on the site's own test rows.
        expected: the gain to expect, from the test rows of all sites, with its interval.
        forecast: the further test rows that would show the gain; None where the advice does not need them.
    """

    method: str
    advice: Advice
    probability: float
    federation: str | None
    gain: Interval
    expected: Interval
    forecast: Forecast | None = None


class MethodChoice(NamedTuple):
    """The method that the federation should run.

    Attributes:
        method: its label.
        best: the method with the best mean over the sites on validation rows; another one if a simpler is as good.
        sites: number of sites whose validation rows were compared.
        folds: method -> number of folds whose validation rows choose it; empty without folds.
    """

    method: str
    best: str
    sites: int
    folds: Mapping[str, int] = MappingProxyType({})


class SiteJudgement(NamedTuple):
    """The outcome at one site.

    Attributes:
        party: id of the site.
        name: name of the site.
        test_rows: number of different rows on which models were tested.
        rarest_class: number of these rows in the rarest class, if the score is computed by class; otherwise 0.
        scores: the score of each method and of the baseline.
        gains: the gain of each method and of the baseline over training alone; positive values are better for every
            score; without numbers where training alone diverged.
        decision: what the site should do; None before it is decided, without training alone among the methods, or if it
            diverged at this site.
        variances: the unbiased variance of each gain; without those that are not known.
    """

    party: int
    name: str
    test_rows: int
    rarest_class: int
    scores: dict[str, Interval]
    gains: dict[str, Interval]
    decision: Decision | None = None
    variances: Mapping[str, float] = MappingProxyType({})

    def has_reference(self, alone: str | None) -> bool:
        """Whether a method can be compared with training alone, which has not diverged at this site."""
        return alone is not None and not np.isinf(self.scores[alone].value)

    @property
    def has_few_rows(self) -> bool:
        """Whether the test rows are so few that only large differences can be detected."""
        return 0 < self.test_rows < FEW_ROWS or 0 < self.rarest_class < FEW_ROWS // 2


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
        choice: the method that the federation should run; None before it is chosen, or without validation rows.
    """

    sites: tuple[SiteJudgement, ...]
    means: Means | None
    choice: MethodChoice | None = None


def judge_sites(evidence: Evidence) -> Sites:
    """Judge every method at every site, by its test rows, or without them by the scores of several seeds."""
    if evidence.rows is None:
        return Sites(tuple(_by_seeds(evidence)), None)
    methods = _methods_of(evidence)
    sites, pools, limits = [], (Pool(), Pool()), []
    for party, rows, site in measured_sites(evidence, methods, evidence.alone):
        if site.is_finite:
            for pool, weight in zip(pools, (1.0, rows.is_tested.sum() / len(evidence.seeds)), strict=True):
                pool.add(site.sample, weight)
            limits.append(site.limits)
        others = [m for m in methods if m != evidence.alone] if evidence.alone is not None else []
        sites.append(SiteJudgement(party, evidence.parties[party], rows.is_tested.shape[1], rows.rarest_class,
                                   dict(zip(methods, site.intervals, strict=False)),
                                   dict(zip(others, site.intervals[len(methods):], strict=False)),
                                   variances=dict(zip(others, site.variances[len(methods):].tolist(), strict=False))))
    has_diverged = any(np.isinf(i.value) for s in sites for i in (*s.scores.values(), *s.gains.values()))
    if has_diverged or pools[0].is_empty:
        return Sites(tuple(sites), None)
    low, high = (np.stack(limits)[..., i] for i in (0, 1))
    return Sites(tuple(sites), _means(evidence, pools, np.stack([low.min(axis=0), high.max(axis=0)], axis=1)))


def measured_sites(evidence: Evidence, methods: Sequence[str],
                   reference: str | None) -> Iterator[tuple[int, SiteRows, SiteValues]]:
    """The id of each site with test rows, its rows, and the scores and gains over a reference there."""
    assert evidence.rows is not None
    for party, rows in evidence.rows.sites():
        yield party, rows, measure_site(rows, methods, reference, evidence.rows.sampling, party,
                                        higher_is_better=evidence.higher_is_better, limits=range_of(evidence.score))


def _methods_of(evidence: Evidence) -> tuple[str, ...]:
    return (*evidence.methods, *(() if evidence.baseline is None else (evidence.baseline,)))


def _means(evidence: Evidence, pools: tuple[Pool, Pool], limits: Values) -> Means:
    """The means over the sites at which the score is defined.

    Args:
        pools: the sites with equal weights, and weighted by their test rows.
        limits: [Q, 2] the smallest and the largest possible mean.
    """
    methods = _methods_of(evidence)
    others = [m for m in methods if m != evidence.alone] if evidence.alone is not None else []
    plain, weighted = (pool.intervals(SEED, limits) for pool in pools)
    return Means(dict(zip(methods, plain, strict=False)), dict(zip(methods, weighted, strict=False)),
                 dict(zip(others, plain[len(methods):], strict=False)),
                 dict(zip(others, weighted[len(methods):], strict=False)))


def _by_seeds(evidence: Evidence) -> list[SiteJudgement]:
    """Judgements from the scores of several seeds, without values of single rows; differences are paired by seed."""
    if len(evidence.seeds) < 2:
        return []
    worst = -np.inf if evidence.higher_is_better else np.inf
    scores = evidence.last(evidence.score, evidence.split).fillna(worst).unstack("seed")
    parties = sorted({int(p) for p in scores.index.get_level_values("party")})
    sign = 1.0 if evidence.higher_is_better else -1.0
    judgements = []
    for party in parties:
        of_party = scores.xs(party, level="party")
        values: dict[str, Any] = {m: of_party.loc[m].to_numpy(dtype=float) for m in evidence.methods}
        gains = {m: _of_seeds(difference(values[m], values[evidence.alone], sign))
                 for m in evidence.methods if m != evidence.alone} if evidence.alone is not None else {}
        judgements.append(SiteJudgement(party, evidence.parties[party], 0, 0,
                                        {m: _of_seeds(v) for m, v in values.items()}, gains))
    return judgements


def _of_seeds(values: Values) -> Interval:
    """The interval of the mean over seeds; that of a mean that is not finite if a seed diverged."""
    return mean_interval(values) if np.isfinite(values).all() else not_finite(values)
