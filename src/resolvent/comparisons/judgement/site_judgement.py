"""The judgement of a site and of all sites, in memory and as the plain values of ``summary.json`` and of messages.

An interval is [value, low, high]. Infinite numbers are texts, and undefined numbers are null.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import numpy as np

from resolvent.comparisons.judgement.advice import FederationAdvice, ModelKind, SiteAdvice, SiteEvidence
from resolvent.comparisons.judgement.column_tests import OppositeColumn
from resolvent.predict.intervals import Interval

FEW_ROWS = 20  # a site with fewer test rows is marked, and one with less than half as many of a class
_MAX_ROWS = 2**31
_MAX_METHODS, _MAX_NAME = 1000, 200


class SiteCalibration(NamedTuple):
    """The regression of a site's labels on a shared model's linear predictor, see ``calibration_slope``."""

    intercept: Interval
    slope: Interval


class SiteFacts(NamedTuple):
    """What the rows of one site say about all models.

    Attributes:
        unit: the loss of the best constant, in which gains are measured; or the unit of the user's metric.
        losses: label -> mean loss of the site's model, also of the predictions that need no training.
        evidence: method -> kind of model -> evidence.
        calibrations: method -> calibration of its shared model.
        columns: method -> the columns whose coefficient has the opposite sign here; without methods that have none.
    """

    unit: float = math.nan
    losses: Mapping[str, float] = MappingProxyType({})
    evidence: Mapping[str, Mapping[ModelKind, SiteEvidence]] = MappingProxyType({})
    calibrations: Mapping[str, SiteCalibration] = MappingProxyType({})
    columns: Mapping[str, tuple[OppositeColumn, ...]] = MappingProxyType({})


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
        advice: what the site should do; None before it is decided, without training alone among the methods, or if it
            diverged at this site.
        variances: the unbiased variance of each gain; without those that are not known.
        facts: what the rows say about the models, for the advice.
    """

    party: int
    name: str
    test_rows: int
    rarest_class: int
    scores: dict[str, Interval]
    gains: dict[str, Interval]
    advice: SiteAdvice | None = None
    variances: Mapping[str, float] = MappingProxyType({})
    facts: SiteFacts = SiteFacts()

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
        federation: the method that the federation should run; None before it is decided, or without training alone.
    """

    sites: tuple[SiteJudgement, ...]
    means: Means | None
    federation: FederationAdvice | None = None


def plain_number(value: float | None) -> float | int | str | None:
    """A number as JSON can hold it; ``number_of`` is the inverse."""
    if value is None or isinstance(value, int | np.integer):
        return None if value is None else int(value)
    return None if np.isnan(value) else str(float(value)) if np.isinf(value) else float(value)


def number_of(value: float | str | None) -> float:
    """A number from JSON, in which infinite numbers are texts and undefined numbers are null."""
    return math.nan if value is None else float(value)


def plain_intervals(intervals: Mapping[Any, Sequence[float]]) -> dict[str, list[float | int | str | None]]:
    """Intervals, or other rows of numbers, as JSON can hold them."""
    return {label: [*map(plain_number, numbers)] for label, numbers in intervals.items()}


def plain_site(site: SiteJudgement) -> dict[str, Any]:
    """The judgement of a site, without its advice."""
    facts = site.facts
    return {
        "name": site.name,
        "test_rows": site.test_rows,
        "rarest_class": site.rarest_class,
        "has_few_rows": site.has_few_rows,
        "scores": plain_intervals(site.scores),
        "gains": plain_intervals(site.gains),
        "variances": {method: plain_number(variance) for method, variance in site.variances.items()},
        "unit": plain_number(facts.unit),
        "losses": {method: plain_number(loss) for method, loss in facts.losses.items()},
        "evidence": {method: plain_intervals(of_method) for method, of_method in facts.evidence.items()},
        "calibrations": {method: plain_intervals(calibration._asdict())
                         for method, calibration in facts.calibrations.items()},
        "columns": {method: [[name, *map(plain_number, numbers)] for name, *numbers in found]
                    for method, found in facts.columns.items()},
    }


def read_site(content: Any, party: int, name: str) -> SiteJudgement:
    """The judgement of a site, as ``plain_site`` wrote it, from a file or from a site that may be malicious.

    Raises:
        TypeError, KeyError, ValueError, AttributeError, OverflowError: the content is not one that it writes.
    """
    rows, rarest = content["test_rows"], content["rarest_class"]
    scores, gains = (read_intervals(content[key]) for key in ("scores", "gains"))
    if any(type(number) is not int or not 0 <= number < _MAX_ROWS for number in (rows, rarest)):
        raise ValueError("a number of test rows is not valid")
    variances, losses = ({str(label): number_of(number) for label, number in content[key].items()}
                         for key in ("variances", "losses"))
    if any(variance < 0 for variance in variances.values()):
        raise ValueError("a variance is negative")
    facts = SiteFacts(number_of(content["unit"]), losses, {
        str(label): {kind: _read_evidence(of_method[kind]) for kind in get_args(ModelKind) if kind in of_method}
        for label, of_method in content["evidence"].items()}, {
        str(label): SiteCalibration(*(_read_interval(part[key]) for key in SiteCalibration._fields))
        for label, part in content["calibrations"].items()}, {
        str(label): tuple(OppositeColumn(_name(column[0]), *_numbers(column[1:], 4)) for column in found)
        for label, found in content["columns"].items()})
    return SiteJudgement(party, name, rows, rarest, scores, gains, variances=variances, facts=facts)


def read_intervals(content: Mapping[str, Any]) -> dict[str, Interval]:
    """Label -> interval."""
    if len(content) > _MAX_METHODS:
        raise ValueError("there are too many methods")
    return {str(label): _read_interval(ends) for label, ends in content.items()}


def plain_advice(advice: SiteAdvice | None, use: str | None) -> dict[str, Any] | None:
    """The advice to a site, with the method that it should use."""
    if advice is None:
        return None
    return {"use": use, "answer": advice.answer, "reason": advice.reason, "model": advice.model,
            "probability": plain_number(advice.probability), "expected": [*map(plain_number, advice.expected)],
            "own": [*map(plain_number, advice.own)], "further_rows": advice.further_rows,
            "settled_by": advice.settled_by, "strange": plain_number(advice.strange)}


def read_advice(content: Mapping[str, Any] | None) -> SiteAdvice | None:
    """The advice to a site, as ``plain_advice`` wrote it."""
    if content is None:
        return None
    return SiteAdvice(content["answer"], content["reason"], content["model"], number_of(content["probability"]),
                      _read_interval(content["expected"]), _read_interval(content["own"]), content["further_rows"],
                      number_of(content["strange"]))


def _name(content: Any) -> str:
    if not isinstance(content, str) or not content.isprintable() or len(content) > _MAX_NAME:
        raise ValueError("the name of a column is not valid")
    return content


def _read_evidence(content: Any) -> SiteEvidence:
    numbers = _numbers(content, len(SiteEvidence._fields))
    rows = content[2]
    if type(rows) is not int or not 0 <= rows < _MAX_ROWS:
        raise ValueError("a number of rows is not valid")
    gain, variance, _, slope, slope_variance, covariance, luck = numbers
    if any(number < 0 for number in (variance, slope_variance, luck)):
        raise ValueError("a variance is negative")
    return SiteEvidence(gain, variance, rows, slope, slope_variance, covariance, luck)


def _read_interval(ends: Any) -> Interval:
    return Interval(*_numbers(ends, 3))


def _numbers(content: Any, count: int) -> list[float]:
    kinds = (int, float, str, type(None))
    if not isinstance(content, list) or len(content) != count or any(type(number) not in kinds for number in content):
        raise ValueError(f"there are not {count} numbers")
    return [number_of(number) for number in content]
