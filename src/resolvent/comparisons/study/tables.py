"""The table of a study: the methods by data sets, in which the tests mark the best and the second best methods."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from resolvent.comparisons.judgement.divergence import collapses
from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.metrics import format_value, title_of
from resolvent.comparisons.study.differences import Unit, differences, holm
from resolvent.comparisons.study.scores import seed_means
from resolvent.comparisons.text_tables import Mark, TableForm, text_table
from resolvent.predict.intervals import LEVEL

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


class MarkedScore(NamedTuple):
    """The score of a method on a data set.

    Attributes:
        mean: the mean over the parties and the seeds after the last round.
        sd: the standard deviation over the seeds of the mean over the parties; NaN for one seed.
        mark: ``best``, ``second``, ``collapsed`` or nothing.
    """

    mean: float
    sd: float
    mark: Mark | Literal["collapsed"]


def marked_scores(evidence: Evidence, by: Unit | None = None) -> dict[str, MarkedScore]:
    """The score of each method, with marks by the tests.

    The method with the best mean is marked ``best``, and so is every method that the test does not distinguish from it:
    Holm's p-value, over the comparisons with the best, is at least 0.05. Among the others, the best one is marked
    ``second``, with those that are not distinguished from it. Without a test, the two best means are marked. A method
    that collapsed is marked as such.
    """
    table = seed_means(evidence)
    mean, sd = table.mean(axis=1), table.std(axis=1)
    marks: dict[str, Mark | Literal["collapsed"]] = dict.fromkeys(evidence.methods, "")
    marks |= dict.fromkeys(collapses(evidence), "collapsed")
    remaining = [m for m in evidence.methods if np.isfinite(mean[m]) and not marks[m]]
    for mark in ("best", "second"):
        if not remaining:
            break
        top = (mean[remaining].idxmax if evidence.higher_is_better else mean[remaining].idxmin)()
        group = _not_distinguished(evidence, str(top), remaining, by)
        marks |= dict.fromkeys(group, mark)
        remaining = [m for m in remaining if m not in group]
    return {m: MarkedScore(float(mean[m]), float(sd[m]), marks[m]) for m in evidence.methods}


def _not_distinguished(evidence: Evidence, top: str, methods: Sequence[str], by: Unit | None) -> list[str]:
    """The method and those of the others that the test does not distinguish from it."""
    rows = differences(evidence, top, by)
    rows = rows[rows["method"].isin(methods)]
    p_values = holm(rows["p"].to_numpy(float))
    return [top, *(str(m) for m, p in zip(rows["method"], p_values, strict=True) if p >= 1 - LEVEL)]


def table_frame(scores: Mapping[str, Mapping[str, MarkedScore]]) -> "pd.DataFrame":
    """A row per data set and method: the mean, the standard deviation over the seeds, and the mark."""
    import pandas as pd

    return pd.DataFrame([{"data": data, "method": method, **score._asdict()}
                         for data, of_data in scores.items() for method, score in of_data.items()])


def heading(data: str, evidence: Evidence) -> str:
    """The heading of a column, such as ``digits, accuracy (%)``."""
    unit = " (%)" if format_value(1.0, evidence.score).endswith("%") else ""
    return f"{data}, {title_of(evidence.score)}{unit}"


def table_text(evidences: Mapping[str, Evidence], scores: Mapping[str, Mapping[str, MarkedScore]], form: TableForm,
               caption: str) -> str:
    """The table in a language: the best are bold, the second best underlined (in Markdown: in italics)."""
    methods = list(dict.fromkeys(m for of_data in scores.values() for m in of_data))
    head = ["method", *(heading(data, evidence) for data, evidence in evidences.items())]
    rows = []
    for method in methods:
        cells: list[tuple[str, Mark]] = [(method, "")]
        for data, evidence in evidences.items():
            score = scores[data].get(method)
            if score is None or score.mark == "collapsed":
                cells.append(("–" if score is None else f"{score_text(score, evidence.score)} (collapsed)", ""))
            else:
                cells.append((score_text(score, evidence.score), score.mark))
        rows.append(cells)
    return text_table(head, rows, form, caption)


def score_text(score: MarkedScore, name: str) -> str:
    """``93.1 ± 0.4`` for shares in percent; otherwise as many digits as the standard deviation allows."""
    if not np.isfinite(score.mean):
        return "diverged"
    if format_value(1.0, name).endswith("%"):
        spread = "" if np.isnan(score.sd) else f" ± {100 * score.sd:.1f}"
        return f"{100 * score.mean:.1f}{spread}"
    return f"{score.mean:.3g}" if np.isnan(score.sd) else f"{score.mean:.3g} ± {score.sd:.1g}"
