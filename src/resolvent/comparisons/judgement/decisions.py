"""Which method a federation should run, and whether each site should join it.

A decision has two levels, because a federation runs one method.

1. *The method* is chosen by the validation rows of all sites: the best mean over the sites, unless a simpler method is
   as good (``choose_method``). A method is simpler if it sends fewer bytes, and then if it is named earlier.
2. *Each site* chooses between its personal model of that run and its own model alone, by the gain that it can expect
   (``decide``). The gains of all sites on their test rows come from one population, so that a site with few rows
   borrows strength from the others, and a site that differs from all others keeps its own gain.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.judgement.decision_rule import DecisionRule
from resolvent.comparisons.judgement.population import Posterior, population_posterior
from resolvent.comparisons.judgement.power_forecast import forecast
from resolvent.comparisons.judgement.sites import (
    CHOSEN,
    Advice,
    Decision,
    Evidence,
    MethodChoice,
    SiteJudgement,
    Sites,
    judge_sites,
)
from resolvent.predict.intervals import LEVEL, Interval

_CERTAIN = 0.95  # from this probability on, the advice is "join" without "probably"
_Z = 1.959963984540054  # half the width of an interval in standard deviations
_UNIT_SCALE, _RELATIVE_SCALE = 0.1, 0.2  # size of a typical gain: of shares, and relative to the score of alone
_COMMON_ROWS = 8.0  # the variance of a row at a site counts as much as this many rows of all sites
_WIDTH_ROWS = 30.0  # and the variance by the widths of the intervals as much as this many rows
_FOLDS = 1.25  # the models of folds share rows, so that their errors vary more than their rows say; measured
_NOTHING_KNOWN = 1e3  # standard deviation, in typical gains, of a measurement that says nothing
_FORECAST_MARGINS = 4  # a gain of this many margins (two points of a share) is worth further test rows
_MIN_SITES = 8  # with fewer sites, the number of training rows does not inform the prior

Values = NDArray[np.float64]


def choose_method(evidence: Evidence, rule: DecisionRule | None = None) -> MethodChoice | None:
    """The method with the best mean validation score over the sites and seeds, or a simpler one that is as good.

    With d the mean over the sites of the difference to the best method and s its standard error, a method is as good if
    d^3 / (d^2 + s^2), the difference shrunk by its uncertainty, is at most the margin. Methods whose score is not
    defined at a site, because they diverged there, are left out, if others are defined there. Bounds, which train on
    pooled rows, are never chosen.

    Returns:
        The choice; None without training alone, another method, or validation rows.
    """
    candidates = list(evidence.candidates)
    if evidence.alone is None or not candidates:
        return None
    scores = evidence.last(evidence.score, "validation")
    if scores.empty:
        return None
    table = (scores if evidence.higher_is_better else -scores).replace([np.inf, -np.inf], np.nan)
    by_site = table.groupby(["party", "method"]).agg(lambda values: values.mean(skipna=False)).unstack("method")
    defined = by_site.reindex(columns=candidates).dropna(how="all")
    complete = defined.dropna(axis=1)
    if complete.empty:
        return None
    means = complete.mean()
    best = str(means.idxmax())
    # Training alone may have no score: it is not evaluated on these rows, or it diverged at every site.
    alone = by_site[evidence.alone].abs().dropna() if evidence.alone in by_site else by_site.iloc[:0, 0]
    margin = _margin(rule or DecisionRule(), evidence, float(alone.mean()) if len(alone) else 0.0)
    order = sorted(complete.columns, key=lambda m: _simplicity(evidence, m))
    chosen = next(m for m in order if _is_as_good((complete[best] - complete[m]).to_numpy(), margin))
    return MethodChoice(str(chosen), best, len(complete))


def _simplicity(evidence: Evidence, method: str) -> tuple[float, int]:
    return (evidence.traffic or {}).get(method, 0.0), evidence.methods.index(method)


def _is_as_good(differences: Values, margin: float) -> bool:
    mean = float(differences.mean())
    error = float(differences.var(ddof=1) / len(differences)) if len(differences) > 1 else 0.0
    return mean <= margin or mean**3 / (mean**2 + error) <= margin


def _margin(rule: DecisionRule, evidence: Evidence, alone: float) -> float:
    if rule.margin is not None:
        return rule.margin
    return 0.005 if evidence.is_share else 0.01 * alone


def decide(sites: Sites, evidence: Evidence, rule: DecisionRule | None = None) -> Sites:
    """The sites with their decisions.

    Args:
        sites: the judgements of the sites, with the gains of all methods.
        evidence: the measurements, whose validation scores choose the method.
        rule: how gains and losses are weighed.
    """
    if evidence.alone is None or not sites.sites:
        return sites
    rule = rule or DecisionRule()
    choice = choose_method(evidence, rule)
    method = choice.method if choice is not None else _only(evidence)
    if method is None:
        undecided = Decision(evidence.alone, "stay alone", float("nan"), None, _UNKNOWN, _UNKNOWN)
        return replace(sites, sites=tuple(
            site._replace(decision=undecided if site.has_reference(evidence.alone) else None) for site in sites.sites))
    if choice is not None:
        choice = choice._replace(folds=dict(Counter(evidence.fold_choices)))
    gains, variances = _gains(sites, evidence, method)
    compared = [i for i, site in enumerate(sites.sites) if site.has_reference(evidence.alone)
                and not np.isinf(gains[i].value)]
    alone = [abs(site.scores[evidence.alone].value) for site in sites.sites]
    reference = float(np.median([a for a in alone if np.isfinite(a)] or [1.0]))
    margin = _margin(rule, evidence, reference)
    moderated = _moderated([sites.sites[i] for i in compared], [gains[i] for i in compared], variances[compared])
    posterior = _posterior([gains[i] for i in compared], moderated * (_FOLDS if evidence.folds > 1 else 1.0),
                           _features(evidence, sites.sites, compared),
                           _UNIT_SCALE if evidence.is_share else max(_RELATIVE_SCALE * reference, 1e-12))
    decisions: dict[int, Decision | None] = {
        i: _with_forecast(_decision(evidence, method, gains[i], posterior, position, rule, margin), sites.sites[i],
                          float(moderated[position]), margin)
        for position, i in enumerate(compared)}
    for i, gain in enumerate(gains):
        if gain.value == -np.inf:  # the method diverged at this site
            decisions[i] = Decision(evidence.alone, "stay alone", 0.0, method, gain, gain)
    return replace(sites, choice=choice, sites=tuple(
        site._replace(decision=decisions.get(i)) for i, site in enumerate(sites.sites)))


_UNKNOWN = Interval(np.nan, np.nan, np.nan)


def _gains(sites: Sites, evidence: Evidence, method: str) -> tuple[list[Interval], Values]:
    """The gain of the federation's method at each site, and [K] their variances, nan where they are not known.

    If the folds choose different methods, it is the gain of the choice itself: each row is tested with the method that
    the validation rows of its fold choose. A test row of a fold is a validation row of others, so that the choice of
    all folds together has read it.
    """
    of_sites, label = sites.sites, method
    if not set(evidence.fold_choices) <= {method}:
        assert evidence.alone is not None
        label = CHOSEN
        of_sites = judge_sites(replace(evidence, methods=(evidence.alone, CHOSEN), baseline=None)).sites
    return ([site.gains.get(label, _UNKNOWN) for site in of_sites],
            np.array([site.variances.get(label, np.nan) for site in of_sites], dtype=float))


def _only(evidence: Evidence) -> str | None:
    """The method if there is nothing to choose."""
    return evidence.candidates[0] if len(evidence.candidates) == 1 else None


def _posterior(gains: Sequence[Interval], variances: Values, features: Values | None,
               scale: float) -> Posterior | None:
    """The posterior of the gains; a gain that is not defined at a site is that of the population.

    Args:
        gains: the gain of each site.
        variances: [K] the variance of each gain; nan where it is not known.
        features: [K, P] what is known of the sites.
    """
    if not gains:
        return None
    values = np.array([gain.value for gain in gains])
    is_known = np.isfinite(values) & np.isfinite(variances)
    values = np.where(is_known, values, 0.0)
    variances = np.where(is_known, np.maximum(variances, (1e-3 * scale) ** 2), (_NOTHING_KNOWN * scale) ** 2)
    return population_posterior(values, variances, features, scale=scale, level=LEVEL)


def _moderated(sites: Sequence[SiteJudgement], gains: Sequence[Interval], variances: Values) -> Values:
    """[K] the variance of each gain, by the rows of all sites.

    The variance at a site with few rows is itself uncertain: where no row shows a difference by chance, gain and
    variance are small, and the site would count too much. With n_k v_k the variance of a row at site k, which has n_k
    rows (of the rarest class, for a metric by class), the moderated variance m_k has

    .. code-block:: text

        n_k m_k = (d s^2 + (n_k - 1) n_k v_k) / (d + n_k - 1)
        s^2 = (D w^2 + sum_k (n_k - 1) n_k v_k) / (D + sum_k (n_k - 1))

    where w^2 is the median over the sites of n_k (half the width of the interval / 1.96)^2, which is large if there are
    few rows, d = 8 and D = 30.

    Source: Smyth, *Linear Models and Empirical Bayes Methods for Assessing Differential Expression in Microarray
    Experiments*, 2004, (4); the prior from the widths is this library's own.
    """
    _, low, high = np.array(gains, dtype=float).reshape(-1, 3).T
    of_width = ((high - low) / (2 * _Z)) ** 2
    rows = np.array([site.rarest_class or site.test_rows for site in sites], dtype=float)
    is_known = np.isfinite(of_width) & np.isfinite(variances) & (rows > 0)
    if not is_known.any():
        return np.asarray(of_width)
    rows = np.maximum(rows, 1)
    freedom = np.where(is_known, rows - 1, 0)
    of_rows = freedom * rows * np.where(is_known, variances, 0)
    width = float(np.median((of_width * rows)[is_known]))
    common = (_WIDTH_ROWS * width + of_rows.sum()) / (_WIDTH_ROWS + freedom.sum())
    moderated = (_COMMON_ROWS * common + of_rows) / (_COMMON_ROWS + freedom) / rows
    return np.asarray(np.where(is_known, moderated, of_width))


def _features(evidence: Evidence, sites: Sequence[SiteJudgement], compared: Sequence[int]) -> Values | None:
    """The logarithm of the number of training rows, with mean 0 and standard deviation 1: small sites gain more."""
    if evidence.train is None or len(compared) < _MIN_SITES:
        return None
    rows = np.log(np.maximum([evidence.train[sites[i].party] for i in compared], 1))
    spread = rows.std()
    return None if spread == 0 else ((rows - rows.mean()) / spread)[:, None]


def _decision(evidence: Evidence, method: str, gain: Interval, posterior: Posterior | None, i: int,
              rule: DecisionRule, margin: float) -> Decision:
    assert evidence.alone is not None
    assert posterior is not None
    value = float(posterior.gain[i] - rule.cost * posterior.loss[i])
    probability = float(posterior.positive[i])
    advice: Advice = "no difference"
    if value > margin:
        advice = "join" if probability >= _CERTAIN else "probably join"
    elif value < -margin:
        advice = "stay alone"
    expected = Interval(*(float(part[i]) for part in (posterior.mean, posterior.low, posterior.high)))
    joins = advice in ("join", "probably join")
    return Decision(method if joins else evidence.alone, advice, probability, method, gain, expected)


def _with_forecast(decision: Decision, site: SiteJudgement, variance: float, margin: float) -> Decision:
    """The decision with the further test rows that would settle it, if it is not certain.

    The gain to be seen is the expected one, or that of a few margins if it is smaller.
    """
    if decision.advice not in ("probably join", "no difference"):
        return decision
    gain = max(decision.expected.value, _FORECAST_MARGINS * margin)
    return decision._replace(forecast=forecast(decision.gain, variance, site.test_rows, site.rarest_class, gain))
