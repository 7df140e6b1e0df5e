"""The report: one self-contained page, drawn from the files of a run folder alone."""

from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup

from resolvent.data.atomic_files import write_text
from resolvent.study import figures
from resolvent.study.metrics import GAP, format_value, title_of
from resolvent.study.summary import EXPERIMENT_FILE, METRICS_FILE, read_summary
from resolvent.study.verdict import columns_of

__all__ = ["write_report"]

_MAX_ROWS = 40  # the gains of more parties than this are sorted curves instead of a table


def write_report(folder: Path) -> Path:
    """Draw ``report.html`` from ``summary.json``, ``metrics.parquet`` and ``experiment.yaml``.

    Raises:
        InputError: the folder does not hold a finished run, or one of these files is damaged.
    """
    summary = read_summary(folder)
    metrics = pd.read_parquet(folder / METRICS_FILE)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
                                     lstrip_blocks=True)
    template = environment.from_string((resources.files("resolvent.study") / "report.html.jinja").read_text("utf-8"))
    score = summary["score"]
    page = template.render(
        summary=summary,
        warnings=summary.get("warnings", []),
        score=title_of(score),
        columns={column: missing or "–" for column, missing in columns_of(score).items()},
        number=lambda value, missing: missing if value is None else format_value(value, score),
        experiment=None if summary["experiment"] is None else (folder / EXPERIMENT_FILE).read_text("utf-8"),
        megabytes=lambda n: f"{n / 1e6:.2f} MB",
        **_pictures(metrics, summary),
        **_gain_section(metrics, summary),
    )
    path = folder / "report.html"
    write_text(path, page)
    return path


def _pictures(metrics: pd.DataFrame, summary: dict[str, Any]) -> dict[str, Any]:
    """The legend and the pictures of the page, except those of the gains."""
    methods, score = list(summary["methods"]), summary["score"]
    if score == GAP:
        curves, panels = figures.gap_panel(metrics, methods), figures.gap_panels(metrics, methods)
    else:
        split = summary.get("split", "test")
        curves = figures.curves_panel(metrics, methods, score, split)
        panels = figures.spread_panels(metrics, methods, score, summary["alone"], split=split,
                                       higher_is_better=summary["higher_is_better"])
    change = figures.change_panel(metrics, methods)
    return {"legend": figures.legend(methods), "curves": Markup(curves), "panels": [Markup(p) for p in panels],
            "change": None if change is None else Markup(change),
            "lines": [Markup(p) for p in figures.line_panels(metrics, methods)]}


def _gain_section(metrics: pd.DataFrame, summary: dict[str, Any]) -> dict[str, Any]:
    """The gains over training alone: a table, or a picture of many parties; nothing without local training."""
    section: dict[str, Any] = {"gains": None, "gain_methods": [], "gain_picture": None}
    if summary["alone"] is None:
        return section
    gains, percent = _gains(metrics, summary), format_value(1.0, summary["score"]).endswith("%")
    section["gain_methods"] = list(gains.columns)
    if len(gains) > _MAX_ROWS:
        section["gain_picture"] = Markup(figures.gain_panel(gains, list(summary["methods"]), percent=percent))
    else:
        section["gains"] = _gain_rows(gains, percent=percent)
    return section


def _gains(metrics: pd.DataFrame, summary: dict[str, Any]) -> pd.DataFrame:
    """Per party and method, the last test score minus that of training alone; positive is better."""
    rows = metrics[(metrics["metric"] == summary["score"]) & (metrics["split"] == summary.get("split", "test"))]
    last = rows[rows["round"] == rows.groupby("method")["round"].transform("max")]
    table = last.pivot(index="party", columns="method", values="value")
    sign = 1 if summary["higher_is_better"] else -1
    table = (table * sign).fillna(-np.inf)  # a method that diverged is worse than any other
    gains: pd.DataFrame = table.sub(table[summary["alone"]], axis=0).fillna(0)
    gains = gains.loc[:, [m for m in summary["methods"] if m != summary["alone"]]]
    gains.index = pd.Index([summary["data"]["parties"][int(k)] for k in gains.index])
    return gains


def _gain_rows(gains: pd.DataFrame, *, percent: bool) -> list[dict[str, Any]]:
    """Rows of cells with text and colour: blue for a gain, orange for a loss, stronger for larger numbers."""
    sizes = gains.abs().to_numpy()
    largest = float(sizes[np.isfinite(sizes)].max(initial=0)) or 1.0
    rows = []
    for party, row in gains.iterrows():
        cells = []
        for value in row:
            strength = 0.0 if value == 0 else 0.2 + 0.55 * min(abs(value) / largest, 1)
            side = "gain" if value > 0 else "loss" if value < 0 else "level"
            text = "0" if value == 0 else f"{100 * value:+.1f}" if percent else f"{value:+.3g}"
            text = text.replace("-", "−").replace("inf", "∞")
            cells.append({"text": text, "side": side, "strength": f"{strength:.2f}"})
        rows.append({"party": party, "cells": cells})
    return rows
