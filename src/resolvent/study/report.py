"""The report: one self-contained page, drawn from the files of a run folder alone."""

from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from resolvent.problem.errors import InputError
from resolvent.simulate.store import write_atomically
from resolvent.study import figures
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
    methods, score, alone = list(summary["methods"]), summary["score"], summary["alone"]
    gains = _gains(metrics, summary) if alone is not None else None
    many = gains is not None and len(gains) > _MANY
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
                                     lstrip_blocks=True)
    template = environment.from_string((resources.files("resolvent.study") / "report.html.jinja").read_text("utf-8"))
    page = template.render(
        summary=summary,
        score=score.replace("_", " "),
        columns=["mean", "p10", "worst", "global mean", "global p10", "global worst"],
        number=lambda value: _number(value, percent=score == "accuracy"),
        legend=figures.legend(methods),
        curves=Markup(figures.curves_panel(metrics, methods, score)),
        spreads=[Markup(p) for p in figures.spread_panels(metrics, methods, score, alone)],
        gains=None if gains is None or many else _gain_cells(gains, percent=score == "accuracy"),
        gain_methods=[] if gains is None else list(gains.columns),
        gain_picture=Markup(figures.gain_panel(gains)) if many and gains is not None else None,
        change=_markup(figures.change_panel(metrics, methods)),
        lines=[Markup(p) for p in figures.line_panels(metrics, methods)],
        experiment=(folder / "experiment.yaml").read_text("utf-8"),
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
    gains: pd.DataFrame = table.sub(table[summary["alone"]], axis=0) * sign
    gains = gains.loc[:, [m for m in summary["methods"] if m != summary["alone"]]]
    gains.index = pd.Index([summary["data"]["parties"][int(k)] for k in gains.index])
    return gains


def _gain_cells(gains: pd.DataFrame, *, percent: bool) -> list[dict[str, Any]]:
    """Rows of cells with text and colour: blue for a gain, orange for a loss, stronger for more."""
    largest = float(gains.abs().to_numpy().max()) or 1.0
    rows = []
    for party, row in gains.iterrows():
        cells = []
        for value in row:
            strength = 0.0 if value == 0 else 0.15 + 0.6 * abs(value) / largest
            side = "gain" if value > 0 else "loss" if value < 0 else "level"
            text = "0" if value == 0 else f"{100 * value:+.1f}" if percent else f"{value:+.3g}"
            cells.append({"text": text.replace("-", "−"), "side": side, "strength": f"{strength:.2f}"})
        rows.append({"party": party, "cells": cells})
    return rows


def _number(value: float | None, *, percent: bool) -> str:
    return "–" if value is None else f"{100 * value:.1f} %" if percent else f"{value:.4g}"
