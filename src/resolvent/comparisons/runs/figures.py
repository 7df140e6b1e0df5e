"""The report's pictures: small panels, each an SVG in the page's text colour."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from resolvent.comparisons.judgement.metrics import GAP, title_of
from resolvent.comparisons.pages import INK, page_colours, svg_of
from resolvent.simulator.record.plots import COLOURS, colour_of, new_figure

_PANEL, _WIDE = (3.4, 2.5), (4.8, 2.9)
_MAX_NAMED_SITES = 8  # in a panel
_MAX_COLUMNS, _MAX_SITES = 20, 12  # in a picture of columns by sites, or of reliability diagrams
_TITLE_WIDTH = 32  # characters that fit above a panel


def legend(methods: Sequence[str]) -> list[dict[str, str]]:
    """Label, colour and CSS line style of each method, for the legend that all wide pictures share."""
    css = {"-": "solid", "--": "dashed", "-.": "dashed", ":": "dotted"}
    return [{"label": m, "colour": colour, "dashes": css[dashes]} for m, (colour, dashes) in colour_of(methods).items()]


def curves_panel(metrics: pd.DataFrame, methods: Sequence[str], metric: str, split: str = "test", *,
                 alone: str | None = None, higher_is_better: bool = True) -> Markup:
    """Mean over the parties of their personal models' score against rounds, all methods.

    With ``alone``, the difference from training alone, which separates close curves.
    """
    figure, axes = _figure(*_WIDE)
    rows = _rows(metrics, metric, split)
    means = {m: rows[rows["method"] == m].groupby("round")["value"].mean() for m in methods}
    for method, (colour, dashes) in colour_of(methods).items():
        if method == alone:
            continue
        mean = means[method] if alone is None else (means[method] - means[alone]) * (1 if higher_is_better else -1)
        axes.plot(mean.index, mean, dashes, color=colour, label=method)
    _label_rounds(axes)
    if alone is None:
        axes.set_ylabel(f"mean {split} {title_of(metric)}")
    else:
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_ylabel("mean gain over training alone")
    return svg_of(figure, f"Mean {split} {metric} against rounds")


def spread_panels(metrics: pd.DataFrame, methods: Sequence[str], metric: str, alone: str | None, *,
                  higher_is_better: bool = True, split: str = "test") -> list[Markup]:
    """For each method the parties' mean, 10th to 90th percentile and worst score.

    With ``alone``, those of the parties' gains over training alone, each picture with its own scale. The picture of
    training alone has its scores.
    """
    rows = _rows(metrics, metric, split)
    by_party = {m: rows[rows["method"] == m].groupby(["round", "party"])["value"].mean() for m in methods}
    sign = 1 if higher_is_better else -1
    scores = {m: sign * (by_party[m] - by_party[alone]) if alone is not None and m != alone else by_party[m]
              for m in methods}
    finite = rows["value"].dropna()
    limits = (finite.min(), finite.max()) if len(finite) else (0, 1)
    margin = 0.05 * (limits[1] - limits[0] or 1)
    panels = []
    for method, (colour, _) in colour_of(methods).items():
        figure, axes = _figure(*_PANEL)
        is_gain = alone is not None and method != alone
        by_round = scores[method].groupby(level="round")
        mean, low, high = by_round.mean(), by_round.quantile(0.1), by_round.quantile(0.9)
        axes.fill_between(mean.index, low, high, color=colour, alpha=0.25, linewidth=0)
        axes.plot(mean.index, mean, color=colour)
        worst = by_round.min() if higher_is_better or is_gain else by_round.max()
        axes.plot(worst.index, worst, color=colour, linewidth=0.8)
        if is_gain:
            axes.axhline(0, color=INK, linewidth=0.8)
        else:
            axes.set_ylim(limits[0] - margin, limits[1] + margin)
        axes.set_title(_title(method))
        _label_rounds(axes)
        panels.append(svg_of(figure, f"{method}: {split} {metric}, spread over parties"))
    return panels


def gap_panel(metrics: pd.DataFrame, methods: Sequence[str]) -> Markup:
    """Optimality gap of the shared model against rounds, all methods, on a logarithmic scale."""
    figure, axes = _figure(*_WIDE)
    for method, (colour, dashes) in colour_of(methods).items():
        axes.plot(*_gaps(metrics, method), dashes, color=colour, label=method)
    _set_gap_scale(axes)
    axes.set_ylabel("optimality gap f(w) - f*")
    return svg_of(figure, "Optimality gap against rounds")


def gap_panels(metrics: pd.DataFrame, methods: Sequence[str]) -> list[Markup]:
    """For each method its optimality gap against rounds; those of the other methods are pale in the background."""
    panels = []
    for method, (colour, dashes) in colour_of(methods).items():
        figure, axes = _figure(*_PANEL)
        for other in methods:
            axes.plot(*_gaps(metrics, other), color=INK, linewidth=0.7, alpha=0.25)
        axes.plot(*_gaps(metrics, method), dashes, color=colour, linewidth=2)
        axes.set_title(_title(method))
        _set_gap_scale(axes)
        panels.append(svg_of(figure, f"{method}: optimality gap"))
    return panels


def _gaps(metrics: pd.DataFrame, method: str) -> tuple[pd.Series, pd.Series]:
    """Rounds and gaps; a gap that is zero or not finite is missing, because a logarithmic scale cannot show it."""
    rows = metrics[(metrics["method"] == method) & (metrics["metric"] == GAP)].sort_values("round")
    return rows["round"], rows["value"].where((rows["value"] > 0) & np.isfinite(rows["value"]))


def _set_gap_scale(axes: Axes) -> None:
    _label_rounds(axes)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=7))
    axes.yaxis.set_minor_locator(NullLocator())


def gain_panel(gains: pd.DataFrame, methods: Sequence[str], *, percent: bool = False) -> Markup:
    """Each method's gains over training alone, sorted by party from the lowest to the highest; for many parties."""
    figure, axes = _figure(*_WIDE)
    for method, (colour, dashes) in colour_of(methods).items():
        if method not in gains:
            continue
        values = np.sort(gains[method].dropna().to_numpy()) * (100 if percent else 1)
        axes.plot(np.linspace(0, 100, len(values)), values, dashes, color=colour, label=method)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xlabel("parties, from the lowest gain to the highest (%)")
    axes.set_ylabel(f"gain over training alone{' (points)' if percent else ''}")
    return svg_of(figure, "Gain over training alone, parties sorted")


def change_panel(metrics: pd.DataFrame, methods: Sequence[str]) -> Markup | None:
    """Size of the model change at each aggregation: mean and standard deviation over the parties."""
    rows = _finite(metrics[metrics["metric"] == "model_change"])
    if rows.empty:
        return None
    figure, axes = _figure(*_WIDE)
    for method, (colour, dashes) in colour_of(methods).items():
        by_round = rows[rows["method"] == method].groupby("round")["value"]
        mean, spread = by_round.mean(), by_round.std(ddof=0)
        axes.plot(mean.index, mean, dashes, color=colour, label=method, linewidth=1.4)
        low = (mean - spread).clip(lower=0)
        axes.fill_between(mean.index, low, mean + spread, color=colour, alpha=0.15, linewidth=0)
    _label_rounds(axes)
    axes.set_ylabel("change of a party's model")
    axes.set_ylim(bottom=0)
    return svg_of(figure, "Size of the model change at each aggregation")


def norm_panels(metrics: pd.DataFrame, methods: Sequence[str], names: Sequence[str]) -> list[Markup]:
    """For each method of a federation the norm of each site's update against rounds; empty without such metrics."""
    norms, panels = metrics[metrics["metric"] == "update_norm"], []
    for method in methods:
        rows = norms[norms["method"] == method]
        if rows.empty:
            continue
        figure, axes = _figure(*_PANEL)
        for k in sorted(rows["party"].unique()):
            of_site = rows[rows["party"] == k]
            values = of_site.groupby("round")["value"].max()
            values = values.where((values > 0) & np.isfinite(values))
            axes.plot(values.index, values, label=names[int(k)], linewidth=1, marker="." if len(values) < 3 else "")
        axes.set_title(_title(method))
        _set_gap_scale(axes)
        if len(names) <= _MAX_NAMED_SITES:
            axes.legend(frameon=False, labelcolor=INK)
        panels.append(svg_of(figure, f"{method}: norms of the updates"))
    return panels


def line_panels(metrics: pd.DataFrame, methods: Sequence[str]) -> list[Markup]:
    """Mean training loss between each party's model (0) and the shared one (1), early and late in the run.

    Dashed: the loss of the shared model before the aggregation.
    """
    points = _finite(metrics[metrics["metric"].str.fullmatch(r"line_\d\.\d")])
    panels = []
    for method, (colour, _) in colour_of(methods).items():
        rows = points[points["method"] == method]
        if rows.empty:
            continue
        figure, axes = _figure(*_PANEL)
        before = _finite(metrics[(metrics["method"] == method) & (metrics["metric"] == "line_previous")])
        rounds = sorted(rows["round"].unique())
        for round_, alpha in zip(rounds, (0.45, 1.0) if len(rounds) > 1 else (1.0,), strict=True):
            losses = rows[rows["round"] == round_].groupby("metric")["value"].mean()
            positions = [float(m.removeprefix("line_")) for m in losses.index]
            axes.plot(positions, losses, color=colour, alpha=alpha, label=f"round {round_}")
            axes.axhline(before[before["round"] == round_]["value"].mean(), color=colour, alpha=alpha, linestyle="--",
                         linewidth=1)
        axes.set_title(_title(method))
        axes.set_xlabel("0 = personal model, 1 = shared model")
        axes.set_ylabel("training loss")
        axes.legend(frameon=False, labelcolor=INK)
        panels.append(svg_of(figure, f"{method}: loss from local to shared model"))
    return panels


def reliability_panels(method: str, records: Mapping[str | None, Mapping[str, Any]]) -> list[Markup]:
    """For each site its reliability diagram: the frequency of the class against its probability, before and after.

    Args:
        records: name of a site -> its record of ``calibration.json``; None: that of the shared model.
    """
    panels = []
    for name, record in list(records.items())[:_MAX_SITES]:
        if not record["reliability"]["before"]:
            continue
        figure, axes = _figure(*_PANEL)
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, alpha=0.6)
        stages = ("before", "after") if record["calibration"]["kind"] != "none" else ("before",)
        for stage, colour, marker in zip(stages, (COLOURS[4], COLOURS[0]), ("s", "o"), strict=False):
            probability, frequency, low, high, _ = np.array(record["reliability"][stage]).T
            ends = np.maximum([frequency - low, high - frequency], 0)  # not negative by rounding
            axes.errorbar(probability, frequency, ends, color=colour, marker=marker,
                          markersize=4, linewidth=1, elinewidth=0.6, linestyle="--" if stage == "before" else "-",
                          label=stage if len(stages) > 1 else "not changed")
        axes.set_title(_title(name or "shared model"))
        axes.set_xlim(-0.03, 1.03)
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel("probability")
        axes.set_ylabel("frequency")
        axes.legend(frameon=False, labelcolor=INK, loc="upper left")
        panels.append(svg_of(figure, f"{method}: reliability at {name or 'all sites'}"))
    return panels


def importance_panel(method: str, records: Mapping[str | None, Mapping[str, Any]]) -> Markup | None:
    """Columns by sites: the area of a dot is the importance; a ring marks a site that differs from the others.

    Blue: the coefficient of the column is positive, or the model is not linear; orange: it is negative. Pale: the
    interval includes zero.

    Args:
        records: name of a site -> its record of ``explanation.json``; None: that of the shared model.
    """
    names = [name for name in records if any(i[0] is not None for i in records[name]["importance"].values())]
    names = names[:_MAX_SITES]
    if not names:
        return None
    table = pd.DataFrame({name or "": {c: i[0] for c, i in records[name]["importance"].items()} for name in names})
    columns = table.clip(lower=0).mean(axis=1).sort_values(ascending=False).index[:_MAX_COLUMNS]
    figure, axes = _figure(_WIDE[0], 1.4 + 0.26 * len(columns))
    largest = float(table.to_numpy(float).max()) or 1.0
    for x, name in enumerate(names):
        signs = _signs(records[name])
        for y, column in enumerate(columns):
            value, low, high = records[name]["importance"][column]
            is_certain = low is not None and (low > 0 or high < 0)
            differs = records[name]["differs"].get(column, 0) != 0
            axes.scatter(x, y, s=8 + 180 * max(value or 0, 0) / largest, alpha=0.95 if is_certain else 0.25,
                         color=COLOURS[4] if signs.get(column, 1) < 0 else COLOURS[0],
                         edgecolors=INK if differs else "none", linewidths=1.8 if differs else 0)
    axes.set_yticks(range(len(columns)), [_title(str(column)) for column in columns])
    axes.set_xticks(range(len(names)), [textwrap.shorten(name or "shared model", 20, placeholder=" …")
                                        for name in names], rotation=45, ha="right")
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.invert_yaxis()
    return svg_of(figure, f"{method}: importance of columns by sites")


def _signs(record: Mapping[str, Any]) -> dict[str, float]:
    """Input -> the sign of its coefficient, for a linear model with one output."""
    table = record["coefficients"]
    if table is None or len(table["outputs"]) != 1:
        return {}
    return dict(zip(table["inputs"], np.sign(next(iter(table["outputs"].values()))).tolist(), strict=True))


def _rows(metrics: pd.DataFrame, metric: str, split: str) -> pd.DataFrame:
    return _finite(metrics[(metrics["metric"] == metric) & (metrics["split"] == split)])


def _finite(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows without the values of a method's round in which any value is not finite; the curve has a gap there."""
    is_finite = pd.Series(np.isfinite(rows["value"].to_numpy()), index=rows.index)
    all_finite = is_finite.groupby([rows["method"], rows["metric"], rows["round"]]).transform("all")
    return rows.assign(value=rows["value"].where(all_finite.to_numpy(dtype=bool)))


def _title(label: str) -> str:
    """A label above a panel: on two lines if it is long, and shortened if these do not have room for it."""
    if len(label) <= _TITLE_WIDTH:
        return label
    return textwrap.fill(label, _TITLE_WIDTH, max_lines=2, placeholder=" …")


def _label_rounds(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    with page_colours(), mpl.rc_context({"text.parse_math": False}):  # a dollar sign in a label is a dollar sign
        return new_figure(width, height)
