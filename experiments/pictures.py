"""The picture of a reproduction: its panels on the paper's axes, drawn from the record alone."""

import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from resolvent.files import write_text
from resolvent.metrics import higher_is_better
from resolvent.plots import COLOURS, colour_of, style

_PALE = "#A9C5DA"
_MARKERS = "osD^vPX*"
_AXES = {"rounds": "communication rounds", "seconds": "simulated seconds", "bytes": "bytes sent, both ways",
         "bytes_up": "bytes sent by the parties", "lambda": "lambda (0: own model, 1: shared model)",
         "days": "trading days"}
_SMALL = 1e-2  # the numbers on an axis of values below it are long
_MAX_TICK_LABELS = 9  # tick labels of a sweep's horizontal axis
_TITLE_WIDTH, _TITLE_WIDTH_ALONE = 32, 40  # characters that fit above one of several panels, and above the only one
_DIVERGED_FACTOR = 1e3  # values above this multiple of the first one are cut off

Record = Mapping[str, Any]
Styles = Mapping[str, tuple[str, str]]


def draw(record: Record, path: Path) -> None:
    """Write all panels as one SVG. Curves that the panels share are named once, below them."""
    pictures = [(title, {"axis": record["axis"], "log": record["log"], **panel}, drawing)
                for title, panel in record["panels"].items() for drawing in panel["draw"]]
    styles = _styles([panel["methods"] for _, panel, drawing in pictures if drawing["x"] in _AXES])
    columns = min(record.get("columns") or len(pictures), len(pictures))
    rows = -(-len(pictures) // columns)
    title_width = _TITLE_WIDTH if columns > 1 else _TITLE_WIDTH_ALONE
    settings = {"svg.hashsalt": "resolvent", "font.size": 9, "axes.titlesize": 9,
                "font.sans-serif": ["DejaVu Sans", "Verdana"]}
    with mpl.rc_context({**style, **settings}):
        bars = max([len(panel["methods"]) for _, panel, drawing in pictures if drawing["x"] == "methods"], default=0)
        height = max(4.4 if rows == 1 else 3.1 * rows + 0.6, rows * (0.19 * bars + 0.9))
        figure = Figure(figsize=(max(5.6, 3.6 * columns), height), layout="constrained")
        for i, (title, panel, drawing) in enumerate(pictures):
            axes = figure.add_subplot(rows, columns, i + 1)
            axes.set_title(textwrap.fill(title.replace("Fig. ", "Fig.\N{NO-BREAK SPACE}"), title_width))
            _, left, drawing_of_left = pictures[i - 1]
            is_alike = i % columns and (drawing["x"] == "methods") == (drawing_of_left["x"] == "methods")
            _draw_panel(axes, panel, drawing, left if is_alike else None, styles)
        _add_legend(figure, columns)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Title": record["title"]})
    write_text(path, _compact(text.getvalue()))


def _styles(methods: Sequence[Mapping[str, Any]]) -> Styles:
    """The colours and line styles of the panel with most methods."""
    largest: Mapping[str, Any] = max(methods, key=len, default={})
    return colour_of(list(largest))


def _draw_panel(axes: Axes, panel: Record, drawing: Record, left: Record | None, styles: Styles) -> None:
    """Draw one panel; titles and labels that its left neighbour has are not repeated.

    A panel whose methods all have one of the styles uses these, so that a method looks the same in all panels.
    """
    is_bars = drawing["x"] == "methods"
    if is_bars:
        _bars(axes, panel, drawing)
    elif drawing["x"] in _AXES:
        is_known = panel["methods"].keys() <= styles.keys()
        _curves(axes, panel, drawing, styles if is_known else _styles([panel["methods"]]))
    else:
        _sweep(axes, panel, drawing, styles)
    if left is None or panel["axis"] != left["axis"] or is_bars:
        (axes.set_xlabel if is_bars else axes.set_ylabel)(panel["axis"])
    if panel["log"]:
        _set_log(axes, "x" if is_bars else "y")
    if is_bars and left is not None and list(panel["methods"]) == list(left["methods"]):
        axes.set_yticklabels([])


def _compact(svg: str) -> str:
    """The same picture with coordinates to a tenth of a point, and each path and tag on one line."""
    def shorten(tag: re.Match[str]) -> str:
        text = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.1f}".rstrip("0").rstrip("."), tag[0])
        return re.sub(r"\s+", " ", text).replace(" L ", " ").replace(' "', '"').replace(" />", "/>")

    return re.sub(r"<[a-z][^>]*>", shorten, svg)


def _set_log(axes: Axes, which: Literal["x", "y"]) -> None:
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    if high < 50 * low:  # an interval this small has too few powers of ten for its ticks
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
        axis.set_major_formatter("{x:g}")
    else:
        axis.set_major_locator(LogLocator(numticks=9))
    axis.set_minor_locator(NullLocator())


def _add_legend(figure: Figure, columns: int) -> None:
    """One legend below the panels for those with the longest one or a part of it; the others have their own.

    If it would serve one panel only, each panel has its own legend.
    """
    def is_part(handles: Sequence[Any], labels: list[str]) -> bool:
        """Whether the longest legend has these labels, with the same styles."""
        are_curves = all(isinstance(handle, Line2D) for handle in (*handles, *longest[0]))
        return labels == longest[1][:len(labels)] or (are_curves and set(labels) <= set(longest[1]))

    legends = [axes.get_legend_handles_labels() for axes in figure.axes]
    longest = max(legends, key=lambda legend: len(legend[1]), default=([], []))
    shares = [bool(labels) and is_part(handles, labels) for handles, labels in legends]
    is_shared = sum(shares) > 1 or sum(bool(labels) for _, labels in legends) == 1
    if is_shared:
        width = min(len(longest[1]), 3 if columns == 1 else 2 * columns)
        figure.legend(*longest, loc="outside lower center", ncols=width, fontsize=8)
    for axes, (_, labels), shared in zip(figure.axes, legends, shares, strict=True):
        if labels and not (is_shared and shared):
            axes.legend(fontsize=7)


def _curves(axes: Axes, panel: Record, drawing: Record, styles: Styles) -> None:
    """Mean over the seeds against rounds, with a band from the lowest to the highest seed."""
    methods = panel["methods"]
    first = max(m["first"]["mean"] or 0 for m in methods.values())
    for label, method in methods.items():
        colour, dashes = styles[label]
        mean, low, high = (_drawable(method[key], panel["log"]) for key in ("mean", "low", "high"))
        axes.plot(method[drawing["x"]], mean, dashes, color=colour, label=label, linewidth=1.5)
        if low != high:  # more than one seed
            axes.fill_between(method[drawing["x"]], low, high, color=colour, alpha=0.15, linewidth=0)
    top = max((v for m in methods.values() for v in m["mean"] if v is not None), default=1)
    if top > _DIVERGED_FACTOR * first > 0:  # a method that diverges must not compress the other curves
        # The automatic lower limit is below zero, by a share of the largest value, which a logarithm cannot show.
        lowest = min(v for m in methods.values() for v in _drawable(m["low"], panel["log"]) if not math.isnan(v))
        axes.set_ylim(lowest / 1.2 if panel["log"] else min(lowest, 0.0), _DIVERGED_FACTOR * first)
    axes.set_xlabel(_AXES[drawing["x"]])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=drawing["x"] in ("rounds", "days")))


def _sweep(axes: Axes, panel: Record, drawing: Record, styles: Styles) -> None:
    """Last values against a parameter, one line for each method or for each value of another parameter.

    Lines of methods that all have a style have its colour. Methods without the parameter are horizontal lines.
    """
    lines: dict[Any, list[tuple[float, float, float]]] = {}
    baselines: dict[str, float | None] = {}
    for label, method in panel["methods"].items():
        value, spread = method["final"]["mean"], method["final"]["std"]
        if drawing["x"] not in method["point"]:
            baselines[label] = value
        elif value is not None and (value > 0 or not panel["log"]):
            lines.setdefault(method["point"].get(drawing["lines"], ""), []).append(
                (method["point"][drawing["x"]], value, spread))
    names = list(lines) if drawing["lines"] == "method" else sorted(lines)
    colours = {line: styles[line][0] if {*names} <= styles.keys() else COLOURS[i % len(COLOURS)]
               for i, line in enumerate(names)}
    for i, line in enumerate(names):
        x, y, error = zip(*sorted(lines[line]), strict=True)
        low = [min(e, 0.9 * v) if panel["log"] else e for e, v in zip(error, y, strict=True)]
        name = line if isinstance(line, str) else f"{drawing['lines']} = {line:g}"
        axes.errorbar(x, y, (low, error), color=colours[line], marker=_MARKERS[i % len(_MARKERS)],
                      label=name or None, markersize=4, linewidth=1.3, capsize=2)
    for i, (label, value) in enumerate(baselines.items(), len(names)):
        if value is not None:
            axes.axhline(value, color=COLOURS[i % len(COLOURS)], linestyle=("--", ":", "-.")[i % 3], label=label,
                         linewidth=1.3)
    values = sorted({x for points in lines.values() for x, _, _ in points})
    if drawing.get("log_x", True):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    every = -(-len(values) // _MAX_TICK_LABELS)
    axes.set_xticks(values, [f"{x:g}" if i % every == 0 else "" for i, x in enumerate(values)], rotation=30)
    axes.set_xlabel(drawing["x"])


def _bars(axes: Axes, panel: Record, drawing: Record) -> None:
    """A bar of the last value for each method, from the top down, with its number.

    The best value, and values within 1 % of it, have a strong colour.
    """
    methods, measure = panel["methods"], panel["measure"]
    finals = {label: m["final"] for label, m in methods.items() if m["final"]["mean"] is not None}
    heights = {label: -i for i, label in enumerate(methods)}
    means = [final["mean"] for final in finals.values()] or [0.0]
    best = max(means) if higher_is_better(measure) else min(means)
    for label, final in finals.items():
        is_near_best = abs(final["mean"] - best) <= 0.01 * abs(best)
        axes.barh(heights[label], final["mean"], xerr=final["std"] or None,
                  color=COLOURS[0] if is_near_best else _PALE, height=0.7, error_kw={"linewidth": 1, "capsize": 2})
        end = max(0.0, final["mean"] + (final["std"] or 0))  # a negative bar has its number on the right of zero
        axes.annotate(f" {final['mean']:.4g}", (end, heights[label]), va="center", fontsize=7)
    for label in methods.keys() - finals:
        axes.annotate(" diverged", (0, heights[label]), va="center", fontsize=7)
    axes.set_yticks(list(heights.values()), list(heights))
    axes.set_ylim(0.5 - len(methods), 0.5)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)
    if max(map(abs, means)) < _SMALL:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=3))


def _drawable(values: list[float | None], log: bool) -> list[float]:
    return [v if v is not None and (v > 0 or not log) else math.nan for v in values]
