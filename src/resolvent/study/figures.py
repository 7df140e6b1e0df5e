"""The report's pictures: small panels, each an SVG that takes the page's text colour."""

import io
import re
from collections.abc import Sequence
from itertools import count

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resolvent.simulate.plots import colour_of, new_figure, style

__all__ = ["change_panel", "curves_panel", "gain_panel", "legend", "line_panels", "spread_panels"]

_INK = "#123456"  # stands for the page's text colour until the SVG is written
_PANEL, _WIDE = (3.4, 2.5), (5.6, 3.2)
_numbers = count()


def legend(methods: Sequence[str]) -> list[dict[str, str]]:
    """Label, colour and CSS line style of each method: the page has one legend for all of its wide pictures."""
    css = {"-": "solid", "--": "dashed", "-.": "dashed", ":": "dotted"}
    return [{"label": m, "colour": colour, "dashes": css[dashes]} for m, (colour, dashes) in colour_of(methods).items()]


def curves_panel(metrics: pd.DataFrame, methods: Sequence[str], metric: str, split: str = "test") -> str:
    """Mean over parties of the deployed models' score against rounds, all methods."""
    figure, axes = _figure(*_WIDE)
    rows = _rows(metrics, metric, split)
    for method, (colour, dashes) in colour_of(methods).items():
        mean = rows[rows["method"] == method].groupby("round")["value"].mean()
        axes.plot(mean.index, mean, dashes, color=colour, label=method)
    axes.set_xlabel("round")
    axes.set_ylabel(f"mean {split} {metric.replace('_', ' ')}")
    return _svg(figure, f"Mean {split} {metric} against rounds")


def spread_panels(metrics: pd.DataFrame, methods: Sequence[str], metric: str, alone: str | None,
                  split: str = "test") -> list[str]:
    """For each method, mean and 10th to 90th percentile of the parties; dotted, the mean of training alone."""
    rows = _rows(metrics, metric, split)
    limits = rows["value"].min(), rows["value"].max()
    margin = 0.05 * (limits[1] - limits[0] or 1)
    panels = []
    for method, (colour, _) in colour_of(methods).items():
        figure, axes = _figure(*_PANEL)
        by_round = rows[rows["method"] == method].groupby("round")["value"]
        mean, low, high = by_round.mean(), by_round.quantile(0.1), by_round.quantile(0.9)
        axes.fill_between(mean.index, low, high, color=colour, alpha=0.25, linewidth=0)
        axes.plot(mean.index, mean, color=colour)
        worst = by_round.min()
        axes.plot(worst.index, worst, color=colour, linewidth=0.8)
        if alone is not None and method != alone:
            reference = rows[rows["method"] == alone].groupby("round")["value"].mean()
            axes.plot(reference.index, reference, ":", color=_INK, linewidth=1.2)
        axes.set_ylim(limits[0] - margin, limits[1] + margin)
        axes.set_title(method)
        axes.set_xlabel("round")
        panels.append(_svg(figure, f"{method}: {split} {metric}, spread over parties"))
    return panels


def gain_panel(gains: pd.DataFrame) -> str:
    """For many parties: each method's gains over training alone, sorted from the worst off to the best off."""
    figure, axes = _figure(*_WIDE)
    for method, (colour, dashes) in colour_of(list(gains.columns)).items():
        values = np.sort(gains[method].dropna().to_numpy())
        axes.plot(np.linspace(0, 100, len(values)), values, dashes, color=colour, label=method)
    axes.axhline(0, color=_INK, linewidth=0.8)
    axes.set_xlabel("parties, from the worst off to the best off (%)")
    axes.set_ylabel("gain over training alone")
    return _svg(figure, "Gain over training alone, parties sorted")


def change_panel(metrics: pd.DataFrame, methods: Sequence[str]) -> str | None:
    """Size of the model change at each aggregation, mean and standard deviation over parties."""
    rows = metrics[metrics["metric"] == "model_change"]
    if rows.empty:
        return None
    figure, axes = _figure(*_WIDE)
    for method, (colour, dashes) in colour_of(methods).items():
        by_round = rows[rows["method"] == method].groupby("round")["value"]
        mean, spread = by_round.mean(), by_round.std(ddof=0)
        axes.plot(mean.index, mean, dashes, color=colour, label=method, linewidth=1.4)
        low = (mean - spread).clip(lower=0)
        axes.fill_between(mean.index, low, mean + spread, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel("change of a party's model")
    axes.set_ylim(bottom=0)
    return _svg(figure, "Size of the model change at each aggregation")


def line_panels(metrics: pd.DataFrame, methods: Sequence[str]) -> list[str]:
    """Mean training loss on the line from each party's model (0) to the shared one (1), early and late in the run.

    Dashed: the loss of the shared model before the aggregation.
    """
    steps = metrics[metrics["metric"].str.fullmatch(r"line_\d\.\d")]
    panels = []
    for method, (colour, _) in colour_of(methods).items():
        rows = steps[steps["method"] == method]
        if rows.empty:
            continue
        figure, axes = _figure(*_PANEL)
        before = metrics[(metrics["method"] == method) & (metrics["metric"] == "line_previous")]
        rounds = sorted(rows["round"].unique())
        for round_, alpha in zip(rounds, (0.45, 1.0) if len(rounds) > 1 else (1.0,), strict=True):
            losses = rows[rows["round"] == round_].groupby("metric")["value"].mean()
            at = [float(m.removeprefix("line_")) for m in losses.index]
            axes.plot(at, losses, color=colour, alpha=alpha, label=f"round {round_}")
            axes.axhline(before[before["round"] == round_]["value"].mean(), color=colour, alpha=alpha, linestyle="--",
                         linewidth=1)
        axes.set_title(method)
        axes.set_xlabel("0 = own model, 1 = shared model")
        axes.set_ylabel("training loss")
        axes.legend(frameon=False, labelcolor=_INK)
        panels.append(_svg(figure, f"{method}: loss from local to shared model"))
    return panels


def _rows(metrics: pd.DataFrame, metric: str, split: str) -> pd.DataFrame:
    return metrics[(metrics["metric"] == metric) & (metrics["split"] == split)]


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    ink = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color",
                         "axes.titlecolor"), _INK)
    with mpl.rc_context(ink):
        return new_figure(width, height)


def _svg(figure: Figure, title: str) -> str:
    """The figure as SVG to put into a page: no size of its own, ids of its own, text in the page's colour."""
    text = io.StringIO()
    with mpl.rc_context({**style, "svg.hashsalt": "resolvent"}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Title": title})
    svg = text.getvalue()
    svg = svg[svg.index("<svg"):].replace(_INK, "currentColor")
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*pt" ', r'<svg \1', re.sub(r' height="[^"]*pt"', "", svg, count=1), count=1)
    prefix = f"f{next(_numbers)}-"
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", svg)
    label = title.replace("&", "&amp;").replace('"', "&quot;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
