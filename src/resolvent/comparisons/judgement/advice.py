r"""What each site should do, and which method the federation should run: evidence in, advice out.

This page is the whole rule. Nothing here reads a file, a report or a network.

**Evidence.** A site has n rows, each predicted once by models that were trained without it. With l_i the loss of a
model at row i (log loss, or squared error), a_i that of the site's own model *alone*, and B the loss of the best
constant, the gain in skill is the mean of d_i = (a_i - l_i) / B. A gain of 0.1 removes a tenth of what the base rate
leaves unexplained. B is of all labels of the site, training rows included: the entropy of two test rows may be a tenth
of it. The site also has the slope b of its labels on the shared model's linear predictor. Both come from the same rows
and have a joint covariance (``site_evidence``). A site with fewer than 10 held-out rows is not judged: its answer is
*unclear*, and it is in no mean over the sites.

**Variance.** n_k v_k, the variance of a row, is shrunk to the median over the sites with the weight of 8 rows, because
few rows say little about their own variance. Models of folds share rows: the variance of the mean is 1.2 times as large
as independent rows would give. The model that a site will use is trained on its rows, too, and its luck in the draw of
them is not seen by folds, which measure the mean over such draws (Bates, Hastie, Tibshirani 2024). A regression with p
coefficients exceeds the smallest loss by c chi^2_p / n, with c = 1/2 for log losses and the variance of the errors for
squared errors (Wilks), so that the posterior of a gain has in addition the variance (1.25 c sqrt(2 p) / (n B))^2. The
factor 1.25 is measured: the choice of the strength is luck as well.

**Population.** For the gains of one model at K sites, in skill:

.. code-block:: text

    (y_k, b^_k) ~ Normal((theta_k, b_k), V_k)                          measured gain and slope
    with probability 1 - pi:  theta_k = mean + size . x_k + spread e_k,  e_k ~ t_4;   b_k ~ Normal(c, (0.25 u)^2)
    with probability pi:      theta_k = 0.5 e_k,  e_k ~ t_4;                          b_k ~ Normal(0, (1.5 u)^2)
    mean ~ Normal(0, 0.1^2),  size ~ Normal(0, 0.05^2),  spread ~ half-Normal(0.05),  pi ~ Beta(1, 9), mean 0.1

x_k is the logarithm of the number of rows, standardised, from eight sites on. Everything but c is integrated. c is the
weighted median of the slopes and of one further slope of 1, so that strangers cannot move it. u = max(1, |c|), because
all slopes are large where strangers weaken the shared model. The slope decides, with the gain, whether a site is a
stranger, and then only its own rows speak for it. See ``population_posterior``.

**Vetoes.** A site's own evidence is never outvoted. It is never told to join if

- its own estimate is below zero, and P(theta > 0) by its own rows alone (Student with n - 1 degrees of freedom; the
  variance with the luck of training) is below 0.2, where n counts at most twice the rows of the rarer class; or
- it shows *another relation*: its slope is below the other sites' by more than 1.96 standard deviations of the
  difference. The variance of the difference is that of the slope plus (0.25 u)^2, so that with many rows the limit is
  about u/2. What a site would gain is borrowed from sites like it, and this test says that it is not one of them.

**Answer.** With E the expectation over the posterior, the value of a model is E[theta] - 2 E[loss beyond the margin of
0.01]. A loss counts twice, because the site did not need to take part.

.. code-block:: text

    stay alone, no difference   the interval of 95 % lies inside the margin
    join                        value > 0, E[theta] > margin, P(theta > 0) >= 0.75, and no veto
    stay alone                  E[theta] < 0 and P(theta > 0) <= 0.25; or the model diverged
    unclear                     otherwise; always if training has not settled or the site has no evidence

**Method.** A method has a shared model, personal models, or both. Each site takes the best of them that it should join,
or alone with the value 0. The federation runs the method with the largest mean value v over the sites, or a simpler one
(listed earlier) that is as good: with d the difference of v and s its standard error, d^3 / (d^2 + s^2) <= margin. The
largest of M means looks better than it is: from the expected gain of the federation, E[max of M normals] s is
subtracted. The posterior of a site needs no such correction, because it is shrunk already (Senn 2008).

**What would settle it.** Further rows n' with which the interval of the site's own rows excludes zero with the
probability 0.8, if the gain is the expected one, or 0.04 if that is smaller. Beyond ten times the site's rows the
answer is: more rows of this kind would not tell.

| constant | where it comes from |
|---|---|
| prior share of strangers 0.1, cost 2, veto at 0.2, ten times the rows | stated policy, not estimated |
| 10 rows of a judged site | stated policy: fewer rows do not show their own variance |
| margin 0.01, scale 0.1 of a typical gain, t_4, 8 rows | as for all decisions of the library |
| 0.5 and 1.5 for strangers | weak: reversed effects have gains of -0.2 to -2, and slopes about -1 |
| 0.25 for slopes of one relation | effects that vary by a quarter from site to site |
| factors 1.2 and 1.25, probability 0.75 | chosen on the worlds of benchmarks/advice.py but the last, made afterwards |

Source: Bates, Hastie, Tibshirani, *Cross-Validation: What Does It Estimate and How Well Does It Do It?*, Journal of the
American Statistical Association 2024; Gelman et al., *Bayesian Data Analysis*, 3rd edition, 2013, chapters 5 and 17;
Senn, *A Note Concerning a Selection "Paradox" of Dawid's*, The American Statistician 2008; Smyth 2004, for the shrunk
variances.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.judgement.calibration_slope import Calibration
from resolvent.comparisons.judgement.decision_rule import DecisionRule
from resolvent.comparisons.judgement.population import Posterior, Strangers, population_posterior
from resolvent.comparisons.judgement.power_forecast import further_rows
from resolvent.errors import InputError
from resolvent.predict.intervals import LEVEL, Interval

__all__ = ["Candidate", "FederationAdvice", "SiteAdvice", "SiteEvidence", "advise", "base_loss",
           "site_evidence", "used_method"]

FEWEST_ROWS = 10  # held-out rows of a site that is judged
_JOIN = 0.75
_SCALE, _WIDE, _STRANGERS = 0.1, 0.5, 0.1
_SLOPE_SPREAD, _STRANGE_SLOPES = 0.25, 1.5
_OWN_EVIDENCE = 0.2
_COMMON_ROWS, _FOLDS, _LUCK, _MIN_SITES = 8.0, 1.2, 1.25, 8
_MOST_ROWS, _FORECAST_MARGINS = 10, 4
_NOTHING_KNOWN = 1e3  # standard deviation, in typical gains, of a measurement that says nothing
_Z = 1.959963984540054

Array = NDArray[np.float64]
Answer = Literal["join", "stay alone", "unclear"]
LabelKind = Literal["binary", "classes", "numbers", "other"]
ModelKind = Literal["shared", "personal"]
Reason = Literal["expected gain", "expected loss", "own evidence", "another relation", "no difference", "few rows",
                 "not converged", "diverged", "no evidence"]


class SiteEvidence(NamedTuple):
    """What the rows of one site say about one model, in skill.

    Attributes:
        gain: mean gain over *alone* of the held-out rows; nan if there is none, -inf if the model diverged.
        variance: of the mean, by independent rows.
        rows: number of held-out rows; with two classes, at most twice the rows of the rarer one.
        slope: of the labels on the shared model's linear predictor; nan if it is not identified.
        slope_variance: of the slope.
        covariance: of the gain and the slope.
        luck: standard deviation of the gain between trainings on other rows of the same number; 0 if it is not known.
    """

    gain: float
    variance: float
    rows: int
    slope: float = math.nan
    slope_variance: float = math.inf
    covariance: float = 0.0
    luck: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """One kind of model of one method, at all sites.

    Attributes:
        method: the name of the method.
        sites: the evidence of each site, in the same order for all candidates.
        model: whether all sites use the same model, or each its own.
        is_settled: whether the training has converged so far that more rounds would not change the advice; of all
            sites, or of each. Otherwise no advice is given.
    """

    method: str
    sites: Sequence[SiteEvidence]
    model: ModelKind = "shared"
    is_settled: bool | Sequence[bool] = True


class SiteAdvice(NamedTuple):
    """What a site should do.

    Attributes:
        model: the model to use: *shared* or *personal* of the federation's method, or *alone*. Unclear means *alone*.
        probability: that the site gains by the model in question.
        expected: the expected gain with its interval, by the rows of all sites.
        own: the gain by the site's own rows with its interval.
        further_rows: the number of further rows that would settle an unclear answer; None if the answer is clear, or
            if rows of this kind would not settle it.
        strange: the probability that the site is not one of the population.
    """

    answer: Answer
    reason: Reason
    model: ModelKind | Literal["alone"]
    probability: float
    expected: Interval
    own: Interval
    further_rows: int | None
    strange: float

    @property
    def settled_by(self) -> str:
        """What would settle an unclear answer; empty if it is clear."""
        if self.answer != "unclear":
            return ""
        if self.reason == "not converged":
            return "more rounds"
        if self.reason == "no evidence":
            return "more test rows"
        if self.further_rows is None:
            return "more rows of this kind would not tell"
        return f"about {self.further_rows:,} more row{'' if self.further_rows == 1 else 's'} would tell"


class FederationAdvice(NamedTuple):
    """What the federation should do.

    Attributes:
        method: the method to run; None if no site should join any.
        about: the method that the advice to the sites is about.
        sites: the advice to each site about this method; about the method of the largest value if no site should join.
        values: method -> mean over the sites that can be judged of the value.
        gain: the expected mean gain over the sites that can be judged, corrected for the choice of the method.
        not_shared: [K] whether a site should not use the shared model of the method, if it has one.
    """

    method: str | None
    about: str
    sites: tuple[SiteAdvice, ...]
    values: dict[str, float]
    gain: float
    not_shared: tuple[bool, ...]


def used_method(advice: SiteAdvice | None, method: str | None, alone: str | None) -> str | None:
    """The method that a site should use; None where training alone diverged, because there is no reference."""
    return None if advice is None else method if advice.answer == "join" else alone


def site_evidence(alone: Array, model: Array, labels: Array, calibration: Calibration | None = None, *,
                  kind: LabelKind, coefficients: int = 0, base: float | None = None) -> SiteEvidence:
    """The evidence of one site from its held-out rows.

    Args:
        alone: [n] loss of the site's own model at each row.
        model: [n] loss of the model in question.
        labels: [n] 0 and 1 or class numbers, with log losses; numbers, with squared errors; or other labels, with the
            loss of the model, in units of the loss of *alone*.
        calibration: of the shared model on the same rows.
        coefficients: number of coefficients that the site's own model estimates.
        base: B, the loss of the best constant by all labels of the site; default: by the labels of these rows.

    Returns:
        The evidence; without a gain if there are fewer than 10 rows, which is not enough to judge a site.
    """
    n = len(alone)
    if base is None:
        base = float(np.abs(alone).mean()) if kind == "other" and n else base_loss(labels, kind=kind)
    if n and not np.isfinite(model).all():
        return SiteEvidence(-math.inf, math.inf, n)
    if n < FEWEST_ROWS or not np.isfinite(alone).all() or not base > 0:
        return SiteEvidence(math.nan, math.inf, n)
    gains = (np.asarray(alone, dtype=float) - model) / base
    _, counts = np.unique(labels, return_counts=True)
    is_binary = kind == "binary" or (kind == "classes" and len(counts) <= 2)
    rows = int(min(n, 2 * counts.min() if len(counts) == 2 else 0)) if is_binary else n
    luck = (float(np.mean(alone)) if kind == "numbers" else 0.5) * math.sqrt(2 * min(coefficients, n)) / (n * base)
    evidence = SiteEvidence(float(gains.mean()), float(gains.var(ddof=1)) / n, max(rows, 1), luck=luck)
    return with_slope(evidence, gains, calibration)


def with_slope(evidence: SiteEvidence, gains: Array, calibration: Calibration | None) -> SiteEvidence:
    """The evidence with the slope of the shared model, and its covariance with the mean of the rows' gains [n]."""
    if calibration is None or not (math.isfinite(calibration.slope) and np.isfinite(gains).all()):
        return evidence
    return evidence._replace(slope=calibration.slope, slope_variance=float(calibration.covariance[1, 1]),
                             covariance=float(calibration.influence[:, 1] @ (gains - gains.mean())) / len(gains))


def base_loss(labels: Array, *, kind: LabelKind) -> float:
    """The mean loss of the best constant: the entropy of the classes, with half a row more of each, or the variance.

    Args:
        labels: [n] 0 and 1, class numbers, or numbers.

    Returns:
        The loss; nan for other labels.
    """
    if kind in ("numbers", "other"):
        return float(np.var(labels, ddof=1)) if kind == "numbers" and len(labels) > 1 else math.nan
    counts = np.unique(labels, return_counts=True)[1]
    rows = np.pad(counts, (0, max(2 - len(counts), 0))) + 0.5
    p = rows / rows.sum()
    return float(-(p * np.log(p)).sum())


def advise(candidates: Sequence[Candidate],
           rule: DecisionRule = DecisionRule()) -> FederationAdvice:  # noqa: B008 - it is frozen
    """The method that the federation should run, and the advice to each site.

    Args:
        candidates: the models to choose from, those of simpler methods first.
        rule: how gains and losses are weighed.

    Raises:
        InputError: there is no candidate or no site, or the candidates have different numbers of sites.

    Example:
        >>> alike = [SiteEvidence(0.10, 0.02**2, 200, 1.0, 0.2**2)] * 5
        >>> reversed_ = SiteEvidence(-0.60, 0.10**2, 200, -0.9, 0.2**2)
        >>> advice = advise([Candidate("FedAvg", [*alike, reversed_])])
        >>> [site.answer for site in advice.sites[-2:]], advice.sites[-1].reason
        (['join', 'stay alone'], 'another relation')
    """
    numbers = {len(candidate.sites) for candidate in candidates}
    if len(numbers) != 1 or numbers == {0}:
        raise InputError(f"every candidate needs the evidence of the same sites, got {sorted(numbers)} sites")
    judged = [(candidate, _judge(candidate, rule)) for candidate in candidates]
    of_methods = {method: [part for c, part in judged if c.method == method]
                  for method in dict.fromkeys(c.method for c in candidates)}
    best = {method: _best_of_sites(parts) for method, parts in of_methods.items()}
    can_be_judged = [any(not math.isnan(site.gain) for site in of_site)
                     for of_site in zip(*(c.sites for c in candidates), strict=True)]
    number = max(sum(can_be_judged), 1)
    values = {method: sum(site.worth for site in sites) / number for method, sites in best.items()}
    top = max(values, key=lambda method: values[method])
    chosen = next(m for m in values if _is_as_good(best[top], best[m], rule.margin))
    sites = best[chosen]
    joins = [site for site in sites if site.advice.answer == "join"]
    error = math.sqrt(sum(site.variance for site in joins)) / number
    gain = sum(site.advice.expected.value for site in joins) / number - _largest_of(len(values)) * error
    shared = next((part for c, part in judged if c.method == chosen and c.model == "shared"), None)
    return FederationAdvice(chosen if joins else None, chosen, tuple(site.advice for site in sites), values,
                            gain if joins else 0.0, tuple(
                                shared is not None and shared[k].advice.answer != "join" for k in range(len(sites))))


class _Judged(NamedTuple):
    """A site's advice about one model, its value, 0 unless it should join, and the posterior variance of its gain."""

    advice: SiteAdvice
    value: float
    variance: float

    @property
    def worth(self) -> float:
        return self.value if self.advice.answer == "join" else 0.0


def _best_of_sites(candidates: Sequence[Sequence[_Judged]]) -> list[_Judged]:
    """For each site, its advice about the best of a method's models."""
    order = {"join": 2, "unclear": 1, "stay alone": 0}
    return [max(of_site, key=lambda judged: (order[judged.advice.answer], judged.value))
            for of_site in zip(*candidates, strict=True)]


def _is_as_good(best: Sequence[_Judged], other: Sequence[_Judged], margin: float) -> bool:
    difference = float(np.mean([a.worth - b.worth for a, b in zip(best, other, strict=True)]))
    error = float(np.sum([a.variance + b.variance for a, b in zip(best, other, strict=True)])) / len(best) ** 2
    return difference <= margin or difference**3 / (difference**2 + error) <= margin


def _largest_of(number: int) -> float:
    """The expected largest of independent standard normal variables."""
    from scipy.special import ndtr  # here, because its import takes 0.1 s, and a run does not need it

    x = np.linspace(0, 9, 1801)
    return float(np.trapezoid(1 - ndtr(x) ** number - ndtr(-x) ** number, x))


def _judge(candidate: Candidate, rule: DecisionRule) -> list[_Judged]:
    sites = candidate.sites
    gain, variance, rows, slope, slope_variance, covariance, luck = np.array(sites, dtype=float).T
    is_known = np.isfinite(gain) & np.isfinite(variance)
    variance = _moderated(np.where(is_known, variance, np.nan), rows) * _FOLDS
    covariance = np.where(is_known, covariance * _FOLDS, 0.0)  # so that the correlation with the slope stays
    slope_variance = slope_variance * _FOLDS
    luck = (_LUCK * luck) ** 2
    posterior = _posterior(np.where(is_known, gain, 0.0), variance, rows, slope, slope_variance, covariance, luck,
                           rule.margin)
    is_other = _has_another_relation(slope, slope_variance)
    judged = []
    for k in range(len(sites)):
        own, own_probability = _own(float(gain[k]), float(variance[k] + luck[k]), int(rows[k]))
        value = float(posterior.mean[k] - rule.cost * posterior.loss[k])
        answer, reason = _answer(candidate, k, posterior, value, rule.margin, has_other_relation=bool(is_other[k]),
                                 own_is_against=bool(gain[k] < 0 and own_probability < _OWN_EVIDENCE))
        expected = Interval(*(float(part[k]) for part in (posterior.mean, posterior.low, posterior.high)))
        further = _further(float(variance[k]), int(rows[k]), abs(expected.value), rule.margin) if (
            answer == "unclear" and reason in ("few rows", "own evidence")) else None
        judged.append(_Judged(SiteAdvice(answer, reason, candidate.model if answer == "join" else "alone",
                                         float(posterior.positive[k]), expected, own, further,
                                         float(posterior.strange[k])), value, float(posterior.variance[k])))
    return judged


def _answer(candidate: Candidate, k: int, posterior: Posterior, value: float, margin: float, *,
            has_other_relation: bool, own_is_against: bool) -> tuple[Answer, Reason]:
    gain = candidate.sites[k].gain
    if gain == -math.inf:
        return "stay alone", "diverged"
    if not (candidate.is_settled if isinstance(candidate.is_settled, bool) else candidate.is_settled[k]):
        return "unclear", "not converged"
    if not math.isfinite(gain):
        return "unclear", "no evidence"
    against: Reason | None = ("another relation" if has_other_relation else "own evidence" if own_is_against
                              else None)
    mean, probability = float(posterior.mean[k]), float(posterior.positive[k])
    if -margin < posterior.low[k] and posterior.high[k] < margin:
        return "stay alone", "no difference"
    if mean < 0 and probability <= 1 - _JOIN:
        return "stay alone", against or "expected loss"
    if against is None and value > 0 and mean > margin and probability >= _JOIN:
        return "join", "expected gain"
    return "unclear", against or "few rows"


def _moderated(variance: Array, rows: Array) -> Array:
    """[K] variances of the means, shrunk to the median variance of a row; nan where nothing is known."""
    rows = np.maximum(rows, 1)
    of_row = variance * rows
    if np.isnan(of_row).all():
        return variance
    common = float(np.nanmedian(of_row))
    return np.asarray((_COMMON_ROWS * common + (rows - 1) * of_row) / (_COMMON_ROWS + rows - 1) / rows)


def _posterior(gain: Array, variance: Array, rows: Array, slope: Array, slope_variance: Array, covariance: Array,
               luck: Array, margin: float) -> Posterior:
    variance = np.where(np.isfinite(variance), np.maximum(variance, (1e-3 * _SCALE) ** 2),
                        (_NOTHING_KNOWN * _SCALE) ** 2)
    has_slope = np.isfinite(slope) & np.isfinite(slope_variance)
    centre, unit = _common_slope(slope, slope_variance)
    slope, slope_variance = np.where(has_slope, slope, 0.0), np.where(has_slope, slope_variance, 1.0)
    conditional, log_density = [], []
    for middle, spread in ((centre, unit * _SLOPE_SPREAD), (0.0, unit * _STRANGE_SLOPES)):
        total = slope_variance + spread**2
        pull = np.where(has_slope, covariance / total, 0.0)
        conditional.append((gain - pull * (slope - middle), np.maximum(variance - pull * covariance, variance / 10)))
        log_density.append(-0.5 * (np.log(total) + (slope - middle) ** 2 / total))
    members, strangers = conditional
    log_ratio = np.where(has_slope, log_density[1] - log_density[0], 0.0)
    return population_posterior(*members, _features(rows), scale=_SCALE, level=LEVEL, margin=margin,
                                strangers=Strangers(_STRANGERS, _WIDE, log_ratio, *strangers), luck=luck)


def _features(rows: Array) -> Array | None:
    """The logarithm of the number of rows, standardised: small sites gain more."""
    size = np.log(np.maximum(rows, 1))
    return None if len(rows) < _MIN_SITES or size.std() < 0.1 else ((size - size.mean()) / size.std())[:, None]


def _common_slope(slope: Array, variance: Array) -> tuple[float, float]:
    """The weighted median of the slopes and of one slope of 1, as precise as the median site's; and the unit u."""
    known = np.isfinite(slope) & np.isfinite(variance)
    if not known.any():
        return 1.0, 1.0
    precision = 1 / (variance[known] + _SLOPE_SPREAD**2)
    values, weights = np.append(slope[known], 1.0), np.append(precision, np.median(precision))
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    centre = float(values[order][np.searchsorted(reached, reached[-1] / 2)])
    return centre, max(1.0, abs(centre))


def _has_another_relation(slope: Array, variance: Array) -> NDArray[np.bool_]:
    """[K] whether the slope is below the other sites' by more than 1.96 standard deviations of the difference."""
    answers = []
    for k in range(len(slope)):
        if not (np.isfinite(slope[k]) and np.isfinite(variance[k])):
            answers.append(False)
            continue
        others, unit = _common_slope(np.delete(slope, k), np.delete(variance, k))
        answers.append(bool(slope[k] - others < -_Z * math.hypot(math.sqrt(variance[k]), unit * _SLOPE_SPREAD)))
    return np.array(answers, dtype=bool)


def _own(gain: float, variance: float, rows: int) -> tuple[Interval, float]:
    """The interval of the gain by the site's own rows, and the probability that it is positive."""
    from scipy.special import stdtr, stdtrit  # here, because its import takes 0.1 s, and a run does not need it

    if not (math.isfinite(gain) and math.isfinite(variance)):
        return Interval(gain, math.nan, math.nan), math.nan
    deviation, freedom = math.sqrt(max(variance, 1e-300)), max(rows - 1, 1)
    reach = float(stdtrit(freedom, (1 + LEVEL) / 2)) * deviation
    return Interval(gain, gain - reach, gain + reach), float(stdtr(freedom, gain / deviation))


def _further(variance: float, rows: int, gain: float, margin: float) -> int | None:
    number = further_rows(variance, rows, max(gain, _FORECAST_MARGINS * margin))
    return None if number is None or number > _MOST_ROWS * rows else number
