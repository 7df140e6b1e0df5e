"""The report: one self-contained page, drawn from the files of a run folder alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from resolvent.comparisons.judgement.convergence import unfinished_text
from resolvent.comparisons.judgement.metrics import GAP, format_value, run_columns, title_of
from resolvent.comparisons.judgement.verdict import columns_of
from resolvent.comparisons.judgement.wording import (
    advice_of,
    folds_text,
    format_points,
    format_signed,
    reason_text,
)
from resolvent.comparisons.pages import write_page
from resolvent.comparisons.runs import figures
from resolvent.comparisons.runs.later_sections import later_sections
from resolvent.comparisons.runs.summary import (
    EXPERIMENT_FILE,
    METRICS_FILE,
    as_number,
    read_summary,
    score_rows,
    sign_of,
)
from resolvent.errors import count_of

__all__ = ["redraw_report", "write_report"]

_FILE = "report.html"
_NO_CELL = {"text": "–", "interval": "", "side": "", "strength": ""}
_MAX_NAMED = 10  # sites with few test rows
_MAX_SITES = 200  # sites in the table of all scores
_MAX_ROWS = 40  # the gains of more parties than this are sorted curves instead of a table


def write_report(folder: Path) -> Path:
    """Draw ``report.html`` from ``summary.json``, ``metrics.parquet`` and ``experiment.yaml``.

    Raises:
        InputError: the folder does not hold a finished run, or one of these files is damaged.
    """
    summary = read_summary(folder)
    metrics = pd.read_parquet(folder / METRICS_FILE)
    score, path = summary["score"], folder / _FILE
    write_page(
        path, "report",
        summary=summary,
        warnings=summary.get("warnings", []),
        score=title_of(score),
        columns={column: missing or "–" for column, missing in columns_of(score).items()},
        number=lambda value, missing: missing if value is None else format_value(value, score),
        experiment=None if summary["experiment"] is None else (folder / EXPERIMENT_FILE).read_text("utf-8"),
        traffic=lambda n: f"{n / 1e6:.2f} MB" if n >= 1e5 else f"{n / 1e3:.2f} kB",
        seeds=_seeds_text(summary),
        score_rows=score_rows(summary),
        in_points=format_value(1.0, score).endswith("%"),
        **_pictures(metrics, summary),
        **_gain_section(metrics, summary),
        **_decision_section(summary),
        unfinished=unfinished_text(summary),
        means=_mean_rows(summary),
        **_site_scores(summary),
        **later_sections(folder, summary),
    )
    return path


def redraw_report(folder: Path) -> None:
    """Draw the report of a folder again, if it has one."""
    if (folder / _FILE).is_file():
        write_report(folder)


def _pictures(metrics: pd.DataFrame, summary: dict[str, Any]) -> dict[str, Any]:
    """The legend and the pictures of the page, except those of the gains."""
    methods, score = list(summary["methods"]), summary["score"]
    if score == GAP:
        curves, panels = figures.gap_panel(metrics, methods), figures.gap_panels(metrics, methods)
    else:
        split = summary.get("split", "test")
        alone = summary["alone"] if len(methods) > 1 else None
        curves = figures.curves_panel(metrics, methods, score, split, alone=alone,
                                      higher_is_better=summary["higher_is_better"])
        panels = figures.spread_panels(metrics, methods, score, alone, split=split,
                                       higher_is_better=summary["higher_is_better"])
    return {"legend": figures.legend(methods), "differences": score != GAP and summary["alone"] is not None
            and len(methods) > 1, "curves": curves, "panels": panels, "change": figures.change_panel(metrics, methods),
            "lines": figures.line_panels(metrics, methods),
            "norms": figures.norm_panels(metrics, methods, summary["data"]["parties"])}


def _seeds_text(summary: dict[str, Any]) -> str:
    """``seed 0``, or ``5 seeds, 0 to 4``; with folds also their number."""
    seeds, folds = summary.get("seeds", [summary["seed"]]), summary.get("folds", 1)
    of_folds = f" · {folds} folds" if folds > 1 else ""
    return (f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}") + of_folds


def _decision_section(summary: dict[str, Any]) -> dict[str, Any]:
    """The advice to each site; empty without intervals or without training alone."""
    sites = [site for site in summary.get("sites", []) if site["advice"] is not None]
    section: dict[str, Any] = {"decisions": [], "few": "", "decision_text": "", "about": ""}
    if not sites:
        return section
    section["about"] = summary["federation"]["about"]
    ends = [100 * as_number(end) for site in sites for end in site["advice"]["expected"]]
    finite = [end for end in ends if np.isfinite(end)]
    limits = (min([0.0, *finite]), max([0.0, *finite]))
    section["decisions"] = [_decision_row(summary, site, limits) for site in sites]
    section["decision_text"] = folds_text(summary)
    few = [f"{site['name']} ({count_of(site['test_rows'], 'test row')})" for site in sites if site["has_few_rows"]]
    more = f", and {len(few) - _MAX_NAMED} more" if len(few) > _MAX_NAMED else ""
    section["few"] = f"{', '.join(few[:_MAX_NAMED])}{more}"
    return section


def _decision_row(summary: dict[str, Any], site: dict[str, Any], limits: tuple[float, float]) -> dict[str, Any]:
    advice, score, about = site["advice"], summary["score"], summary["federation"]["about"]
    expected, own = ([100 * as_number(end) for end in advice[key]] for key in ("expected", "own"))
    gain = [as_number(end) for end in site["gains"][about]]
    return {"site": site["name"], "advice": advice_of(advice), "is_alone": advice["use"] == summary["alone"],
            "few": site["has_few_rows"], "test_rows": site["test_rows"], "reason": reason_text(site, about),
            "expected": format_points(expected[0]), "expected_interval": _points_interval(expected),
            "own": format_points(own[0]), "own_interval": _points_interval(own),
            "gain": _gain_text(gain[0], score), "interval": _interval_text(gain[1], gain[2], score),
            "bar": _bar((expected[0], expected[1], expected[2]), limits)}


def _points_interval(numbers: list[float]) -> str:
    return "" if np.isnan(numbers[1]) else f"[{', '.join(map(format_points, numbers[1:]))}]"


def _gain_text(value: float, score: str) -> str:
    return "0" if value == 0 else format_signed(value, score, unit=False)


def _interval_text(low: float, high: float, score: str) -> str:
    return "" if np.isnan(low) else f"[{', '.join(format_signed(end, score, unit=False) for end in (low, high))}]"


def _bar(interval: tuple[float, float, float], limits: tuple[float, float]) -> dict[str, str]:
    """The positions in percent of an interval on a scale that all sites share."""
    smallest, largest = limits
    width = largest - smallest or 1.0
    value, low, high, zero = (float(np.clip(100 * (np.nan_to_num(x, nan=0.0) - smallest) / width, 0, 100))
                              for x in (*interval, 0.0))
    side = {1: "gain", -1: "loss", 0: "level"}[int(interval[1] > 0) - int(interval[2] < 0)]
    return {"side": side, **{name: f"{position:.1f}" for name, position in (
        ("zero", zero), ("low", low), ("width", high - low), ("value", value))}}


def _mean_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The means over the sites with their intervals, plain and weighted by test rows."""
    means = summary.get("means")
    if means is None:
        return []
    score, rows = summary["score"], []
    for method in means["plain"]:
        cells = []
        for kind in ("plain", "weighted"):
            cells.append(_score_cell(means[kind][method], score))
            if summary["alone"] is not None:
                gain = means[f"{kind}_gains"].get(method)
                cells.append(_NO_CELL if gain is None else _gain_cell(gain, score, 1.0))
        rows.append({"method": method, "cells": cells})
    return rows


def _score_cell(interval: list[Any], score: str) -> dict[str, Any]:
    value, low, high = (as_number(end) for end in interval)
    text = "not defined" if np.isnan(value) else "diverged" if np.isinf(value) else format_value(value, score)
    ends = "" if not np.isfinite(low) else f"[{format_value(low, score)}, {format_value(high, score)}]"
    return {"text": text, "interval": ends, "side": "", "strength": ""}


def _gain_cell(interval: list[Any], score: str, largest: float, *, has_ends: bool = True) -> dict[str, Any]:
    """A gain: blue if its interval is above zero, orange if it is below, stronger for larger numbers."""
    value, low, high = (as_number(end) for end in interval)
    side = {1: "gain", -1: "loss", 0: "level"}[sign_of(interval)]
    strength = 0.0 if side == "level" else 0.2 + 0.55 * min(abs(value) / largest, 1)
    return {"text": _gain_text(value, score), "side": side, "strength": f"{strength:.2f}",
            "interval": _interval_text(low, high, score) if has_ends and np.isfinite(low) else ""}


def _site_scores(summary: dict[str, Any]) -> dict[str, Any]:
    """The score of every site with every method."""
    sites = summary.get("sites", [])[:_MAX_SITES]
    methods = list(sites[0]["scores"]) if sites else []
    return {"score_methods": methods, "site_scores": [
        {"site": site["name"], "few": site["has_few_rows"], "test_rows": site["test_rows"],
         "cells": [_score_cell(site["scores"][m], summary["score"]) for m in methods]} for site in sites]}


def _gain_section(metrics: pd.DataFrame, summary: dict[str, Any]) -> dict[str, Any]:
    """The gains over training alone: a table, or a picture of many parties; nothing without local training."""
    section: dict[str, Any] = {"gains": None, "gain_methods": [], "gain_picture": None}
    sites, score = summary.get("sites"), summary["score"]
    if summary["alone"] is None:
        return section
    if sites and len(sites) <= _MAX_ROWS:
        section["gain_methods"] = list(sites[0]["gains"])
        section["gains"] = _gain_rows(
            {site["name"]: list(site["gains"].values()) for site in sites}, score,
            {site["name"]: count_of(site["test_rows"], "test row") for site in sites if site["has_few_rows"]})
        return section
    gains = _gains(metrics, summary)
    section["gain_methods"] = list(gains.columns)
    if len(gains) > _MAX_ROWS:
        section["gain_picture"] = figures.gain_panel(gains, list(summary["methods"]),
                                                     percent=format_value(1.0, score).endswith("%"))
    else:
        section["gains"] = _gain_rows({party: [[value] * 3 for value in row] for party, row in gains.iterrows()},
                                      score, {}, has_ends=False)
    return section


def _gain_rows(gains: dict[Any, list[Any]], score: str, badges: dict[str, str], *,
               has_ends: bool = True) -> list[dict[str, Any]]:
    """A row per party with its gains, and a badge for parties with few test rows."""
    sizes = np.abs([as_number(gain[0]) for of_party in gains.values() for gain in of_party])
    largest = float(sizes[np.isfinite(sizes)].max(initial=0)) or 1.0
    return [{"party": party, "badge": badges.get(party, ""),
             "cells": [_gain_cell(gain, score, largest, has_ends=has_ends) for gain in of_party]}
            for party, of_party in gains.items()]


def _gains(metrics: pd.DataFrame, summary: dict[str, Any]) -> pd.DataFrame:
    """Per party and method, the last test score minus that of training alone; positive is better."""
    rows = metrics[(metrics["metric"] == summary["score"]) & (metrics["split"] == summary.get("split", "test"))]
    runs = ["method", *run_columns(rows)]
    last = rows[rows["round"] == rows.groupby(runs)["round"].transform("max")]
    table = last.pivot_table(index="party", columns="method", values="value", aggfunc=lambda v: v.mean(skipna=False),
                             dropna=False)
    sign = 1 if summary["higher_is_better"] else -1
    table = (table * sign).fillna(-np.inf)  # a method that diverged is worse than any other
    alone = table[summary["alone"]]
    gains: pd.DataFrame = table.sub(alone.where(np.isfinite(alone)), axis=0)  # where it diverged, it is no reference
    gains = gains.loc[:, [m for m in summary["methods"] if m != summary["alone"]]]
    gains.index = pd.Index([summary["data"]["parties"][int(k)] for k in gains.index])
    return gains
