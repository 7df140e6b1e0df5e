"""Phrases that several findings share."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from resolvent.comparisons.judgement.metrics import format_value
from resolvent.errors import count_of

if TYPE_CHECKING:
    from resolvent.comparisons.judgement.advice import FederationAdvice, SiteAdvice
    from resolvent.comparisons.judgement.site_judgement import SiteCalibration, SiteJudgement
    from resolvent.predict.intervals import Interval

STILL_CHANGES = 0.02  # of the whole fall of the training loss: a method has not converged
_MAX_NAMED, _MAX_COLUMNS = 5, 3  # sites that a finding names, and columns of a site


def enumerate_names(names: Sequence[str], most: int | None = None) -> str:
    """``A``, ``A and B``, ``A, B and C``; of more than ``most`` names ``A, B and 7 more``."""
    if most is not None and len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def format_signed(value: float, score: str, *, unit: bool = True) -> str:
    """A difference of scores: in percentage points with one decimal, or with three digits.

    >>> format_signed(0.0123, "accuracy"), format_signed(-1.5, "loss")
    ('+1.2 points', '−1.5')
    """
    if math.isnan(value):
        return "–"
    if format_value(1.0, score).endswith("%"):
        text = f"{100 * value:+.1f}{' points' if unit else ''}"
    else:
        text = f"{value:+.3g}"
    return text.replace("-", "−").replace("inf", "∞")


def format_gain(gain: "Interval", score: str) -> str:
    """A gain with its interval, such as ``+1.2 points [−0.3, +2.7]``."""
    ends = ", ".join(format_signed(end, score, unit=False) for end in gain[1:])
    return format_signed(gain.value, score) + ("" if math.isnan(gain.low) else f" [{ends}]")


def format_points(value: float) -> str:
    """Points of skill, or hundredths of the user's metric.

    >>> format_points(-12.34)
    '−12.3'
    """
    return "–" if math.isnan(value) else f"{value:+.1f}".replace("-", "−").replace("inf", "∞")


def advice_of(advice: "SiteAdvice") -> str:
    """The advice to a site, such as ``join (97 %)``: with the probability that the site gains, which is above 50 %."""
    if advice.answer == "join":
        return f"join ({min(round(100 * advice.probability), 99)} %)"
    return advice.answer


def reason_text(site: "SiteJudgement", method: str) -> str:
    """Why a site has its advice, and what would settle an unclear one.

    Args:
        site: a site that has an advice.
        method: the method in question.
    """
    advice, calibration = site.advice, site.facts.calibrations.get(method)
    assert advice is not None
    texts = {"expected gain": f"its {advice.model} model of {method}", "expected loss": "it should expect a loss",
             "own evidence": "its own rows are against it", "another relation": "another relation holds",
             "no difference": "no difference", "few rows": "too few rows to tell",
             "not converged": "training has not converged", "diverged": "the training diverged",
             "no evidence": "cannot be judged: fewer than 10 rows, or no score"}
    text = texts[advice.reason]
    if advice.reason == "another relation" and calibration is not None:
        text = slope_text(calibration.slope)
    elif calibration is not None and has_another_base_rate(calibration):
        text = f"{text}; another base rate"
    is_reversed = calibration is not None and calibration.slope.high < 0
    if not is_reversed and (columns := site.facts.columns.get(method)):
        text = f"{text}; {columns_text(columns)}"
    return f"{text}; {advice.settled_by}" if advice.settled_by else text


def unfinished_text(converged: Mapping[str, bool | None], rounds_to_try: Mapping[str, int]) -> str:
    """The methods whose training has not converged, and how many rounds to try; empty if there is none."""
    others = [method for method, answer in converged.items() if answer is False]
    if not others:
        return ""
    verb, its = ("has", "its") if len(others) == 1 else ("have", "their")
    text = (f"{enumerate_names(others)} {verb} not converged: in the last quarter of the rounds, {its} training loss "
            f"changed by more than {STILL_CHANGES:.0%} of its whole fall.")
    tries = [(rounds, method) for method, rounds in rounds_to_try.items()]
    if not tries:
        return f"{text} Use a smaller learning rate."
    most = max(tries)[0]
    rest = "" if len(tries) == len(others) else ", and a smaller learning rate where the loss does not fall"
    return f"{text} Try rounds: {most}{rest}."


def slope_text(slope: Sequence[float]) -> str:
    """What the slope of a site's labels on the shared model's predictor says, see ``calibration_slope``.

    >>> slope_text([-0.8, -1.1, -0.4])
    'the order of the risks is reversed: slope −0.8 [−1.1, −0.4]'
    """
    numbers = f"slope {slope[0]:.1f} [{slope[1]:.1f}, {slope[2]:.1f}]".replace("-", "−")
    if slope[2] < 0:
        return f"the order of the risks is reversed: {numbers}"
    return f"another relation holds: {numbers}"


def columns_text(columns: Sequence[Sequence[Any]]) -> str:
    """The columns with opposite coefficients.

    >>> columns_text([["age", 0.61, -0.9, -1.44, -0.3]])
    'the coefficient of age is −0.9 [−1.4, −0.3], in the shared model +0.61'
    """
    parts = []
    for name, *numbers in columns[:_MAX_COLUMNS]:
        shared, own, low, high = (f"{number:+.2g}".replace("-", "−") for number in numbers)
        parts.append(f"the coefficient of {name} is {own} [{low}, {high}], in the shared model {shared}")
    more = f" ({count_of(len(columns) - _MAX_COLUMNS, 'more column')})" if len(columns) > _MAX_COLUMNS else ""
    return f"{enumerate_names(parts)}{more}"


def has_another_base_rate(calibration: "SiteCalibration") -> bool:
    """Whether the shared model's order fits the site, but its level does not: a factor of 1.5 of the odds or more."""
    slope, intercept = calibration.slope, calibration.intercept
    return slope.low < 1 < slope.high and bool(intercept.sign) and abs(intercept.value) > math.log(1.5)


def federation_text(federation: "FederationAdvice", sites: "Sequence[SiteJudgement]", unit: str) -> str:
    """What the federation should run, which sites should join, and at which another relation holds.

    Args:
        unit: what the points are of, such as `` of skill``.
    """
    groups: dict[str, list[str]] = {"join": [], "stay alone": [], "unclear": [], "no reference": []}
    for site in sites:
        groups["no reference" if site.advice is None else site.advice.answer].append(site.name)
    total, joins = len(sites), groups["join"]
    if not joins:
        counts = [f"{count_of(len(groups[answer]), 'site')} {text}" for answer, text in (
            ("stay alone", "should stay alone"), ("unclear", "cannot tell: the advice is unclear")) if groups[answer]]
        parts = [f"No site should join: {enumerate_names(counts)}." if counts else "No site should join."]
    else:
        who = ("the only site" if total == 1 else f"all {total} sites") if len(joins) == total else (
            f"{len(joins)} of {total} sites")
        parts = [f"Run {federation.method}: {who} should join{_and_the_others(groups)}."]
        parts.append(f"The expected mean gain over the sites is {format_points(100 * federation.gain)} points{unit}.")
    return " ".join([*parts, *relation_texts(federation, sites)])


def relation_texts(federation: "FederationAdvice", sites: "Sequence[SiteJudgement]") -> list[str]:
    """A sentence for each site at which another relation or an opposite coefficient was found, of the first sites."""
    method = federation.method or federation.about
    odd = [(site.name, site.facts.calibrations[method].slope) for site in sites if site.advice is not None
           and site.advice.reason == "another relation" and method in site.facts.calibrations]
    texts = [f"At {name}, {slope_text(list(slope))}." for name, slope in odd[:_MAX_NAMED]]
    opposite = [(site.name, site.facts.columns[method]) for site in sites if method in site.facts.columns
                and not (method in site.facts.calibrations and site.facts.calibrations[method].slope.high < 0)]
    texts += [f"At {name}, {columns_text(columns)}." for name, columns in opposite[:_MAX_NAMED]]
    if len(odd) > _MAX_NAMED:
        texts.append(f"{len(odd) - _MAX_NAMED} more sites have another relation.")
    return texts


def below_baseline(sites: "Sequence[SiteJudgement]", methods: Sequence[str],
                   baseline: str | None) -> tuple[list[str], bool]:
    """The methods without a smaller mean test loss than the predictions that need no training; whether they are all."""
    known = [site.facts.losses for site in sites if baseline in site.facts.losses]
    compared = [m for m in methods if all(m in losses for losses in known)] if known else []
    means = {m: math.fsum(losses[m] for losses in known) / len(known) for m in (*compared, str(baseline)) if known}
    below = [m for m in compared if not means[m] < means[str(baseline)]]
    return below, bool(below) and len(below) == len(compared)


def below_baseline_text(below: Sequence[str], are_all: bool, baseline: str | None) -> str:
    """What ``below_baseline`` has found, as a sentence."""
    if are_all:
        return f"Nothing was learnt: on average over the sites, no method has a smaller test loss than the {baseline}."
    return (f"On average over the sites, {enumerate_names(below)} {'has' if len(below) == 1 else 'have'} a larger test "
            f"loss than the {baseline}." if below else "")


def _and_the_others(groups: Mapping[str, Sequence[str]]) -> str:
    texts = {"stay alone": "should stay alone", "unclear": "should stay alone until it is clear",
             "no reference": "diverged alone and has no reference"}
    parts = [f"{enumerate_names(names) if len(names := groups[answer]) <= _MAX_NAMED else count_of(len(names), 'site')}"
             f" {text}" for answer, text in texts.items() if groups[answer]]
    return f"; {'; '.join(parts)}" if parts else ""


def folds_text(folds: int, seeds: int, points: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """How the rows were tested, with folds: each once.

    Args:
        seeds: number of seeds.
        points: method -> the hyperparameters that were chosen in each fold.
    """
    if folds == 1:
        return ""
    of_seeds = " with each seed" if seeds > 1 else ""
    text = f"Every row was tested once{of_seeds}, by a model that was trained without its fold, of {folds} folds."
    for label, of_method in points.items():
        if tuned := Counter(", ".join(f"{k} = {v}" for k, v in point.items()) for point in of_method):
            text += f" Inside the folds, {label} chose {enumerate_names([f'{v} ({n})' for v, n in tuned.items()])}."
    return text
