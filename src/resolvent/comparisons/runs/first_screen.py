"""What a run says first, in the same words in the terminal and at the top of its report."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from resolvent.comparisons.judgement.advice import SiteAdvice
from resolvent.comparisons.judgement.metrics import GAP, format_value, title_of
from resolvent.comparisons.judgement.site_judgement import SiteJudgement
from resolvent.comparisons.judgement.wording import (
    below_baseline,
    below_baseline_text,
    format_points,
    relation_texts,
    unfinished_text,
)
from resolvent.comparisons.runs.record import RunRecord
from resolvent.errors import count_of

__all__ = ["AdvisedSite", "FirstScreen", "first_screen"]

_MAX_NAMED = 5  # sites with few test rows
ANSWERS = ("join", "stay alone", "unclear")


class AdvisedSite(NamedTuple):
    """A site with its advice."""

    site: SiteJudgement
    advice: SiteAdvice


class FirstScreen(NamedTuple):
    """What a run says first.

    Attributes:
        facts: the task: metric, sites, rows and what a prediction without training reaches.
        counts: answer -> number of sites; empty without advice.
        headline: the method to run with its mean gain, or the finding if there is no advice.
        note: what the mean gain counts; empty without one.
        scores: the mean score of each method, the best first; empty if there are none.
        warnings: each once.
        sites: the sites that have advice, from the largest expected gain to the smallest.
        unit: what a gain of 1 point is.
        limits: the axis of the gains, in points: from all dots, and the ends of intervals that are not far from them. A
            single site far from all others is at the end of the axis, so that the others can be told apart.
    """

    facts: str
    counts: Mapping[str, int]
    headline: str
    note: str
    scores: str
    warnings: Sequence[str]
    sites: Sequence[AdvisedSite]
    unit: str
    limits: tuple[float, float]


def first_screen(record: RunRecord) -> FirstScreen:
    """What a run says first."""
    sites = [AdvisedSite(site, site.advice) for site in record.sites if site.advice is not None]
    sites.sort(key=lambda pair: math.inf if math.isnan(pair.advice.expected.value) else -pair.advice.expected.value)
    federation = record.federation
    unit = f"points of {title_of(record.score)}" if record.decides else "points of skill"
    counts = {} if federation is None or not sites else {
        answer: sum(pair.advice.answer == answer for pair in sites) for answer in ANSWERS}
    headline, note = record.finding, ""
    if federation is not None and counts:
        gain = f"{format_points(100 * federation.gain)} {unit}"
        headline = "No site should join: no method is expected to help."
        if federation.method is not None:
            headline = f"Run {federation.method}. Expected mean gain over training alone: {gain}."
            note = "The mean counts sites that do not join as 0, and corrects for choosing a method."
    return FirstScreen(_facts(record), counts, headline, note, _mean_scores(record),
                       [text for text in _warnings(record) if text not in headline],
                       sites if counts else [], unit, _limits(sites))


def _facts(record: RunRecord) -> str:
    data, score = record.data, "optimality gap" if record.score == GAP else title_of(record.score)
    of = f" of {data.name}" if data.name else ""
    rows = f"{sum(data.train):,} rows{of}"
    if data.test is not None:
        rows = (f"{sum(data.test):,} rows{of}, each tested once" if record.folds > 1 else
                f"{sum(data.train):,} training and {sum(data.test):,} test rows{of}")
    parts = [f"{score} at {count_of(len(data.parties), 'site')}", rows]
    if record.baseline is not None:
        mean = record.score_rows().get(record.baseline, {}).get("mean")
        parts += [] if mean is None else [f"{record.baseline}: {format_value(mean, record.score)}"]
    return " · ".join(parts)


def _mean_scores(record: RunRecord) -> str:
    means = {label: value for label, row in record.score_rows().items() if (value := row.get("mean")) is not None}
    means.pop(record.baseline or "", None)
    best = sorted(means, key=lambda label: means[label], reverse=record.higher_is_better)
    texts = [f"{record.marked(label)} {format_value(means[label], record.score)}" for label in best]
    return f"Mean test {title_of(record.score)}: {', '.join(texts)}." if texts else ""


def _warnings(record: RunRecord) -> list[str]:
    """Each warning once; what makes the whole run doubtful comes first."""
    texts = [unfinished_text(record.converged, record.rounds_to_try)]
    texts.append(below_baseline_text(*below_baseline(record.sites, list(record.methods), record.baseline),
                                     record.baseline))
    if record.federation is not None:
        texts += relation_texts(record.federation, record.sites)
    few = [f"{site.name} ({site.test_rows})" for site in record.advised if site.has_few_rows]
    more = f" and {len(few) - _MAX_NAMED} more" if len(few) > _MAX_NAMED else ""
    if few:
        texts.append(f"Few test rows, so that only large differences can be seen: {', '.join(few[:_MAX_NAMED])}{more}.")
    texts += record.warnings
    if record.has_untuned_reference:
        texts.append(f"{record.alone} is untuned: a gain over it can come from its settings alone. Use careful_local "
                     "as the reference.")
    return [text for text in texts if text]


def _limits(sites: Sequence[AdvisedSite]) -> tuple[float, float]:
    dots = [[100 * interval.value for interval in (pair.advice.expected, pair.advice.own)
             if math.isfinite(interval.value)] for pair in sites]
    lows, highs = ([0.0, 0.0, *(end(of_site) for of_site in dots if of_site)] for end in (min, max))
    lows.sort()
    highs.sort()
    low, high = lows[0], highs[-1]
    if lows[1] - low > 2 * (others := high - lows[1]) > 0:
        low = lows[1] - others
    if high - highs[-2] > 2 * (others := highs[-2] - low) > 0:
        high = highs[-2] + others
    reach = (high - low or 1.0) / 2
    ends = [100 * end for pair in sites for end in pair.advice.expected[1:]
            if low <= 100 * pair.advice.expected.value <= high and math.isfinite(end)]
    return (max(min([low, *ends]), low - reach), min(max([high, *ends]), high + reach))
