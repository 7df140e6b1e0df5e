"""The numbers of a study's tables as texts: shares in percent, and as many digits as can be read."""

from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.comparisons.judgement.metrics import format_value, title_of
from resolvent.comparisons.text_tables import Mark

if TYPE_CHECKING:
    import pandas as pd

_PERCENT = ("difference", "low", "high", "mean", "sd", "worst decile", "worst", "target", "area")
CAPTIONS = {
    "differences": "Differences from {reference}; positive is better.",
    "pairs": "Differences of all pairs of methods; positive: the first method is better.",
    "costs": "What a method spends until the target; the median over the seeds.",
    "fairness": "The distribution of the scores over the sites; means over the seeds."}


def number_texts(frame: "pd.DataFrame", scores: dict[str, str]) -> tuple[list[str], list[list[tuple[str, Mark]]]]:
    """The head and the rows of a table with rounded numbers: shares and their differences in percent."""
    columns = [str(c) for c in frame.columns if not (c == "data" and len(scores) == 1)]
    is_empty = {c for c in columns if frame[c].dtype.kind == "f" and frame[c].isna().all()}
    columns = [c for c in columns if c not in is_empty]
    rows: list[list[tuple[str, Mark]]] = []
    for row in frame.to_dict("records"):
        rows.append([(_text(row[c], c, scores[row["data"]]), "") for c in columns])
    return [title_of(c) for c in columns], rows


def _text(value: Any, column: str, score: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not np.isfinite(value):
        return "–" if np.isnan(value) else "not reached" if column != "mean" else "diverged"
    if column in _PERCENT and format_value(1.0, score).endswith("%"):
        return f"{100 * value:.1f}".replace("-", "−")
    if column == "bytes":
        return f"{value / 1e6:.3g} MB"
    if column in ("p", "holm", "bh"):
        return "<0.001" if value < 0.001 else f"{value:.3f}"
    text = f"{value:.3g}" if isinstance(value, float) else f"{value:,}"
    return text.replace("-", "−")


