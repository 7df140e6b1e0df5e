"""The report: one self-contained page, drawn from the record and the metrics of a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from resolvent.comparisons.judgement.metrics import GAP, columns_of, format_value, run_columns, title_of
from resolvent.comparisons.judgement.site_judgement import SiteJudgement
from resolvent.comparisons.judgement.wording import (
    advice_of,
    folds_text,
    format_points,
    format_signed,
    reason_text,
)
from resolvent.comparisons.pages import write_page
from resolvent.comparisons.runs import figures
from resolvent.comparisons.runs.first_screen import FirstScreen, first_screen
from resolvent.comparisons.runs.later_sections import later_sections
from resolvent.comparisons.runs.record import EXPERIMENT_FILE, RunRecord, read_metrics, read_record
from resolvent.errors import count_of
from resolvent.predict.intervals import Interval

__all__ = ["redraw_report", "write_report"]

_FILE = "report.html"
_NO_CELL = {"text": "–", "interval": "", "side": "", "strength": ""}
_MAX_FOREST = 40  # sites in the plot of their gains
_MAX_SITES = 200  # sites in the table of all scores
_MAX_ROWS = 40  # the gains of more parties than this are sorted curves instead of a table


def write_report(folder: Path, record: RunRecord, metrics: pd.DataFrame) -> Path:
    """Draw ``report.html`` in the folder of a run, which has its ``experiment.yaml``, calibrations and explanations."""
    score, path, screen = record.score, folder / _FILE, first_screen(record)
    write_page(
        path, "report",
        record=record,
        summary=record.plain(),
        score=title_of(score),
        columns={column: missing or "–" for column, missing in columns_of(score).items()},
        number=lambda value, missing: missing if value is None else format_value(value, score),
        experiment=None if record.experiment is None else (folder / EXPERIMENT_FILE).read_text("utf-8"),
        traffic=lambda n: f"{n / 1e6:.2f} MB" if n >= 1e5 else f"{n / 1e3:.2f} kB",
        seeds=_seeds_text(record),
        score_rows=record.score_rows(),
        **_pictures(metrics, record),
        **_gain_section(metrics, record),
        **_decision_section(record),
        screen=screen,
        **_forest(screen),
        means=_mean_rows(record),
        **_site_scores(record),
        **later_sections(folder, record),
    )
    return path


def redraw_report(folder: Path, *, anyway: bool = False) -> Path:
    """Draw the report of a finished run again, if it has one.

    Args:
        anyway: also if it has none.

    Raises:
        InputError: the folder does not hold a finished run, or one of its files is damaged.
    """
    if anyway or (folder / _FILE).is_file():
        write_report(folder, read_record(folder), read_metrics(folder))
    return folder / _FILE


def _pictures(metrics: pd.DataFrame, record: RunRecord) -> dict[str, Any]:
    """The legend and the pictures of the page, except those of the gains."""
    methods, score = list(record.methods), record.score
    if score == GAP:
        curves, panels = figures.gap_panel(metrics, methods), figures.gap_panels(metrics, methods)
    else:
        split = record.split
        alone = record.alone if len(methods) > 1 else None
        curves = figures.curves_panel(metrics, methods, score, split, alone=alone,
                                      higher_is_better=record.higher_is_better)
        panels = figures.spread_panels(metrics, methods, score, alone, split=split,
                                       higher_is_better=record.higher_is_better)
    return {"legend": figures.legend(methods), "differences": score != GAP and record.alone is not None
            and len(methods) > 1, "curves": curves, "panels": panels, "change": figures.change_panel(metrics, methods),
            "lines": figures.line_panels(metrics, methods),
            "norms": figures.norm_panels(metrics, methods, record.data.parties)}


def _seeds_text(record: RunRecord) -> str:
    """``seed 0``, or ``5 seeds, 0 to 4``; with folds also their number."""
    seeds, folds = record.seeds, record.folds
    of_folds = f" · {folds} folds" if folds > 1 else ""
    return (f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}") + of_folds


def _decision_section(record: RunRecord) -> dict[str, Any]:
    """The advice to each site; empty without intervals or without training alone."""
    sites = record.advised
    section: dict[str, Any] = {"decisions": [], "decision_text": "", "about": ""}
    if record.federation is None or not sites:
        return section
    about = section["about"] = record.federation.about
    section["decisions"] = [_decision_row(record, site, about) for site in sites]
    section["decision_text"] = folds_text(
        record.folds, len(record.seeds), {label: method.tuned for label, method in record.methods.items()})
    return section


def _decision_row(record: RunRecord, site: SiteJudgement, about: str) -> dict[str, Any]:
    advice, score, gain = site.advice, record.score, site.gains[about]
    assert advice is not None
    expected, own = ([100 * end for end in interval] for interval in (advice.expected, advice.own))
    return {"site": site.name, "advice": advice_of(advice), "is_alone": record.use(site) == record.alone,
            "few": site.has_few_rows, "test_rows": site.test_rows, "reason": reason_text(site, about),
            "expected": format_points(expected[0]), "expected_interval": _points_interval(expected),
            "own": format_points(own[0]), "own_interval": _points_interval(own),
            "gain": _gain_text(gain.value, score), "interval": _interval_text(gain.low, gain.high, score)}


def _points_interval(numbers: list[float]) -> str:
    return "" if np.isnan(numbers[1]) else f"[{', '.join(map(format_points, numbers[1:]))}]"


def _gain_text(value: float, score: str) -> str:
    return "0" if value == 0 else format_signed(value, score, unit=False)


def _interval_text(low: float, high: float, score: str) -> str:
    return "" if np.isnan(low) else f"[{', '.join(format_signed(end, score, unit=False) for end in (low, high))}]"


def _forest(screen: FirstScreen) -> dict[str, Any]:
    """The sorted plot of the sites' gains: positions in percent of its width, and its axis.

    With more than 40 sites, those with the largest and the smallest gains.
    """
    smallest, largest = screen.limits

    def place(points: float) -> str | None:
        position = 100 * (points - smallest) / (largest - smallest or 1.0)
        return f"{np.clip(position, 0, 100):.1f}" if np.isfinite(position) else None

    sites, half = list(screen.sites), _MAX_FOREST // 2
    chosen = sites if len(sites) <= _MAX_FOREST else [*sites[:half], *sites[-half:]]
    rows = []
    for site, advice in chosen:
        value, low, high = (100 * end for end in advice.expected)
        has_ends = np.isfinite([low, high]).all()
        width = float(place(high) or 0) - float(place(low) or 0) if has_ends else 0.0
        rows.append({"site": site.name, "advice": advice_of(advice), "answer": advice.answer,
                     "text": format_points(value), "value": place(value), "own": place(100 * advice.own.value),
                     "beyond": "◀" if value < smallest else "▶" if value > largest else "",
                     "low": place(low) if has_ends else None, "width": f"{width:.1f}"})
    ticks = [tick for tick in MaxNLocator(3).tick_values(smallest, largest) if smallest <= tick <= largest]
    return {"forest": rows, "left_out": len(sites) - len(chosen), "zero": place(0.0),
            "ticks": [(place(tick), f"{tick:+.0f}".replace("-", "−") if tick else "0") for tick in ticks]}


def _mean_rows(record: RunRecord) -> list[dict[str, Any]]:
    """The means over the sites with their intervals, plain and weighted by test rows."""
    means, score, rows = record.means, record.score, list[dict[str, Any]]()
    if means is None:
        return []
    for method in means.plain:
        cells = []
        for scores, gains in ((means.plain, means.plain_gains), (means.weighted, means.weighted_gains)):
            cells.append(_score_cell(scores[method], score))
            if record.alone is not None:
                gain = gains.get(method)
                cells.append(_NO_CELL if gain is None else _gain_cell(gain, score, 1.0))
        rows.append({"method": method, "cells": cells})
    return rows


def _score_cell(interval: Interval, score: str) -> dict[str, Any]:
    value, low, high = interval
    text = "not defined" if np.isnan(value) else "diverged" if np.isinf(value) else format_value(value, score)
    ends = "" if not np.isfinite(low) else f"[{format_value(low, score)}, {format_value(high, score)}]"
    return {"text": text, "interval": ends, "side": "", "strength": ""}


def _gain_cell(interval: Interval, score: str, largest: float, *, has_ends: bool = True) -> dict[str, Any]:
    """A gain: blue if its interval is above zero, orange if it is below, stronger for larger numbers."""
    value, low, high = interval
    side = {1: "gain", -1: "loss", 0: "level"}[interval.sign]
    strength = 0.0 if side == "level" else 0.2 + 0.55 * min(abs(value) / largest, 1)
    return {"text": _gain_text(value, score), "side": side, "strength": f"{strength:.2f}",
            "interval": _interval_text(low, high, score) if has_ends and np.isfinite(low) else ""}


def _site_scores(record: RunRecord) -> dict[str, Any]:
    """The score of every site with every method."""
    sites = record.sites[:_MAX_SITES]
    methods = list(sites[0].scores) if sites else []
    return {"score_methods": methods, "site_scores": [
        {"site": site.name, "few": site.has_few_rows, "test_rows": site.test_rows,
         "cells": [_score_cell(site.scores[m], record.score) for m in methods]} for site in sites]}


def _gain_section(metrics: pd.DataFrame, record: RunRecord) -> dict[str, Any]:
    """The gains over training alone: a table, or a picture of many parties; nothing without local training."""
    section: dict[str, Any] = {"gains": None, "gain_methods": [], "gain_picture": None}
    sites, score = record.sites, record.score
    if record.alone is None:
        return section
    if sites and len(sites) <= _MAX_ROWS:
        section["gain_methods"] = list(sites[0].gains)
        section["gains"] = _gain_rows(
            {site.name: list(site.gains.values()) for site in sites}, score,
            {site.name: count_of(site.test_rows, "test row") for site in sites if site.has_few_rows})
        return section
    gains = _gains(metrics, record)
    section["gain_methods"] = list(gains.columns)
    if len(gains) > _MAX_ROWS:
        section["gain_picture"] = figures.gain_panel(gains, list(record.methods),
                                                     percent=format_value(1.0, score).endswith("%"))
    else:
        section["gains"] = _gain_rows({str(party): [Interval(value, value, value) for value in row]
                                       for party, row in gains.iterrows()}, score, {}, has_ends=False)
    return section


def _gain_rows(gains: dict[str, list[Interval]], score: str, badges: dict[str, str], *,
               has_ends: bool = True) -> list[dict[str, Any]]:
    """A row per party with its gains, and a badge for parties with few test rows."""
    sizes = np.abs([gain.value for of_party in gains.values() for gain in of_party])
    largest = float(sizes[np.isfinite(sizes)].max(initial=0)) or 1.0
    return [{"party": party, "badge": badges.get(party, ""),
             "cells": [_gain_cell(gain, score, largest, has_ends=has_ends) for gain in of_party]}
            for party, of_party in gains.items()]


def _gains(metrics: pd.DataFrame, record: RunRecord) -> pd.DataFrame:
    """Per party and method, the last test score minus that of training alone; positive is better."""
    rows = metrics[(metrics["metric"] == record.score) & (metrics["split"] == record.split)]
    runs = ["method", *run_columns(rows)]
    last = rows[rows["round"] == rows.groupby(runs)["round"].transform("max")]
    table = last.pivot_table(index="party", columns="method", values="value", aggfunc=lambda v: v.mean(skipna=False),
                             dropna=False)
    sign = 1 if record.higher_is_better else -1
    table = (table * sign).fillna(-np.inf)  # a method that diverged is worse than any other
    alone = table[record.alone]
    gains: pd.DataFrame = table.sub(alone.where(np.isfinite(alone)), axis=0)  # where it diverged, it is no reference
    gains = gains.loc[:, [m for m in record.methods if m != record.alone]]
    gains.index = pd.Index([record.data.parties[int(k)] for k in gains.index])
    return gains
