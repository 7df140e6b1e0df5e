"""Phrases that several findings share."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from resolvent.comparisons.judgement.metrics import format_value
from resolvent.errors import count_of

if TYPE_CHECKING:
    from resolvent.predict.intervals import Interval


def enumerate_names(names: Sequence[str]) -> str:
    """``A``, ``A and B``, ``A, B and C``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def duration_text(seconds: float) -> str:
    """``8 s``, ``12 min``, ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


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


def advice_of(decision: Mapping[str, Any]) -> str:
    """The advice to a site, such as ``probably join (93 %)``; from 95 % on it is ``join``, so that 94.6 % is 94 %."""
    if decision["advice"] != "probably join":
        return str(decision["advice"])
    return f"probably join ({min(round(100 * decision['probability']), 94)} %)"


def forecast_text(decision: Mapping[str, Any], score: str) -> str:
    """How many further test rows would show a gain, such as ``140 more test rows, 30 of the rarest class, ...``."""
    forecast = decision.get("forecast")
    if forecast is None:
        return ""
    gain = format_signed(forecast["gain"], score)
    if not forecast["rows"]:
        return f"these test rows would show {gain}"
    of_class = f", {forecast['rarest']:,} of the rarest class," if forecast["rarest"] else ""
    return f"{forecast['rows']:,} more test row{'' if forecast['rows'] == 1 else 's'}{of_class} would show {gain}"


def choice_text(summary: Mapping[str, Any]) -> str:
    """Sentences about the method that the federation should run, and about folds."""
    return f"{_choice_text(summary)}{_folds_text(summary)}"


def _folds_text(summary: Mapping[str, Any]) -> str:
    """What folds mean for the rows, and for the choice of the method."""
    folds, seeds, choice = summary.get("folds", 1), len(summary["seeds"]), summary["choice"]
    if folds == 1:
        return ""
    of_seeds = " with each seed" if seeds > 1 else ""
    text = f" Every row was tested once{of_seeds}, by a model that was trained without its fold, of {folds} folds."
    for label, method in summary["methods"].items():
        if tuned := Counter(", ".join(f"{k} = {v}" for k, v in point.items()) for point in method.get("tuned", [])):
            text += f" Inside the folds, {label} chose {enumerate_names([f'{v} ({n})' for v, n in tuned.items()])}."
    counts = {} if choice is None else choice.get("folds", {})
    if choice is None or set(counts) <= {choice["method"]}:
        return text
    names = enumerate_names([f"{method} in {count}" for method, count in counts.items()])
    return (f"{text} The validation rows of a fold choose {names} of {folds * seeds} folds, and the gains are those of "
            "this choice.")


def _choice_text(summary: Mapping[str, Any]) -> str:
    """A sentence about the method that the federation should run."""
    choice = summary["choice"]
    if choice is None:
        method = next((m for m in summary["methods"] if m != summary["alone"]), "")
        return f"The federation runs {method}." if len(summary["methods"]) == 2 else (
            "No method was chosen, because there are no validation rows.")
    method, best = choice["method"], choice["best"]
    reason = "has the best mean" if method == best else f"is as good as {best} and simpler"
    sites = count_of(choice["sites"], "site")
    return f"The federation should run {method}, which {reason} on the validation rows of {sites}."


def advice_text(advice: Sequence[str]) -> str:
    """How many sites have which advice."""
    counts = Counter(advice)
    phrases = {"join": "should join", "probably join": "should probably join",
               "no difference": "would see no difference", "stay alone": "should stay alone"}
    parts = [f"{count_of(counts[advice], 'site')} {phrase}" for advice, phrase in phrases.items() if counts[advice]]
    total = sum(counts.values())
    return f"all {total} sites {next(phrases[a] for a in counts)}" if len(counts) == 1 and total > 1 else (
        enumerate_names(parts))
