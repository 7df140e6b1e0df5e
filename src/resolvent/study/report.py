"""The report: one self-contained page, drawn from the files of a run folder alone."""

from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup

from resolvent.errors import InputError
from resolvent.simulate.tree_files import write_atomically
from resolvent.study import figures
from resolvent.study.compare import columns_of
from resolvent.study.folder import read_summary

__all__ = ["write_report"]

_MANY = 40  # more parties than this are drawn as sorted curves, not as a table


def write_report(folder: Path) -> Path:
    """Draw ``report.html`` from ``summary.json``, ``metrics.parquet`` and ``experiment.yaml``.

    Raises:
        InputError: the folder does not hold a finished run.
    """
    summary = read_summary(folder)
    try:
        metrics = pd.read_parquet(folder / "metrics.parquet")
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / 'metrics.parquet'} cannot be read: {error}") from error
    experiment = folder / "experiment.yaml"
    if not experiment.is_file():
        raise InputError(f"there is no finished run in {folder}: {experiment} is missing")
    methods, score, alone = list(summary["methods"]), summary["score"], summary["alone"]
    percent = score == "accuracy"
    gains = _gains(metrics, summary) if alone is not None else None
    picture = None
    if gains is not None and len(gains) > _MANY:
        picture = figures.gain_panel(gains, methods, percent=percent)
    if score == "gap":
        curves, panels = figures.gap_panel(metrics, methods), figures.gap_panels(metrics, methods)
    else:
        curves = figures.curves_panel(metrics, methods, score)
        panels = figures.spread_panels(metrics, methods, score, alone, higher_is_better=summary["higher_is_better"])
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
                                     lstrip_blocks=True)
    template = environment.from_string((resources.files("resolvent.study") / "report.html.jinja").read_text("utf-8"))
    page = template.render(
        summary=summary,
        warnings=summary.get("warnings", []),
        score=score.replace("_", " "),
        columns={column: missing or "–" for column, missing in columns_of(score).items()},
        number=lambda value, missing: _number(value, missing, percent=percent),
        legend=figures.legend(methods),
        curves=Markup(curves),
        panels=[Markup(p) for p in panels],
        gains=None if gains is None or picture else _gain_cells(gains, percent=percent),
        gain_methods=[] if gains is None else list(gains.columns),
        gain_picture=_markup(picture),
        change=_markup(figures.change_panel(metrics, methods)),
        lines=[Markup(p) for p in figures.line_panels(metrics, methods)],
        experiment=experiment.read_text("utf-8"),
        megabytes=lambda n: f"{n / 1e6:.2f} MB",
    )
    path = folder / "report.html"
    write_atomically(path, lambda p: _write_text(p, page))
    return path


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _markup(text: str | None) -> Markup | None:
    return None if text is None else Markup(text)


def _gains(metrics: pd.DataFrame, summary: dict[str, Any]) -> pd.DataFrame:
    """Per party and method, the last test score less that of training alone; positive is better."""
    rows = metrics[(metrics["metric"] == summary["score"]) & (metrics["split"] == "test")]
    last = rows[rows["round"] == rows.groupby("method")["round"].transform("max")]
    table = last.pivot(index="party", columns="method", values="value")
    sign = 1 if summary["higher_is_better"] else -1
    table = (table * sign).fillna(-np.inf)  # diverged: worse than everything else
    gains: pd.DataFrame = table.sub(table[summary["alone"]], axis=0).fillna(0)
    gains = gains.loc[:, [m for m in summary["methods"] if m != summary["alone"]]]
    gains.index = pd.Index([summary["data"]["parties"][int(k)] for k in gains.index])
    return gains


def _gain_cells(gains: pd.DataFrame, *, percent: bool) -> list[dict[str, Any]]:
    """Rows of cells with text and colour: blue for a gain, orange for a loss, stronger for more."""
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


def _number(value: float | None, missing: str, *, percent: bool) -> str:
    return missing if value is None else f"{100 * value:.1f} %" if percent else f"{value:.4g}"
