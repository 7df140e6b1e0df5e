"""The judgement of each site: the methods' scores and gains, with their intervals."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.judgement.advice import ModelKind, SiteEvidence
from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.metrics import last_rows, range_of
from resolvent.comparisons.judgement.row_evidence import facts_of_site
from resolvent.comparisons.judgement.site_judgement import Means, SiteFacts, SiteJudgement, Sites
from resolvent.predict.intervals import Interval, Pool, mean_interval, student_quantile
from resolvent.predict.site_values import SEED, SiteRows, SiteValues, difference, measure_site, not_finite

Values = NDArray[np.float64]


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
        scores = dict(zip(methods, site.intervals, strict=False))
        gains = dict(zip(others, site.intervals[len(methods):], strict=False))
        variances = dict(zip(others, site.variances[len(methods):].tolist(), strict=False))
        of_party = evidence.rows.chosen(evidence.rows.party == party)
        sites.append(SiteJudgement(party, evidence.parties[party], rows.is_tested.shape[1], rows.rarest_class, scores,
                                   gains, variances=variances, facts=SiteFacts() if of_party.labels is None else
                                   facts_of_site(of_party, evidence, scores, gains, variances)))
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
    last = last_rows(evidence.metrics, evidence.score, evidence.split).set_index(["method", "seed", "party"])
    scores = last["value"].astype(float).fillna(worst).unstack("seed")
    parties = sorted({int(p) for p in scores.index.get_level_values("party")})
    sign = 1.0 if evidence.higher_is_better else -1.0
    judgements = []
    for party in parties:
        of_party = scores.xs(party, level="party")
        values: dict[str, Any] = {m: of_party.loc[m].to_numpy(dtype=float) for m in evidence.methods}
        gains = {m: _of_seeds(difference(values[m], values[evidence.alone], sign))
                 for m in evidence.methods if m != evidence.alone} if evidence.alone is not None else {}
        of_seeds = {m: _of_seeds(v) for m, v in values.items()}
        judgements.append(SiteJudgement(party, evidence.parties[party], 0, 0, of_seeds, gains,
                                        facts=_facts_of_seeds(evidence, of_seeds, gains)))
    return judgements


def _facts_of_seeds(evidence: Evidence, scores: Mapping[str, Interval], gains: Mapping[str, Interval]) -> SiteFacts:
    """The evidence of gains that several seeds have measured: without losses of rows and without a calibration."""
    if evidence.alone is None:
        return SiteFacts()
    seeds = len(evidence.seeds)
    unit = 1.0 if evidence.is_share else abs(scores[evidence.alone].value)
    reach = float(student_quantile(seeds - 1))
    of_methods: dict[str, Mapping[ModelKind, SiteEvidence]] = {}
    for method in evidence.candidates:
        gain = gains[method]
        is_known = np.isfinite(gain).all() and unit > 0
        variance = ((gain.high - gain.low) / (2 * reach * unit)) ** 2 if is_known else np.inf
        value = gain.value / unit if is_known else -np.inf if gain.value == -np.inf else np.nan
        of_methods[method] = {"personal": SiteEvidence(value, variance, seeds)}
    return SiteFacts(unit, {}, of_methods)


def _of_seeds(values: Values) -> Interval:
    """The interval of the mean over seeds; that of a mean that is not finite if a seed diverged."""
    return mean_interval(values) if np.isfinite(values).all() else not_finite(values)
