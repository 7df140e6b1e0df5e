"""The results folder: a JSON and an SVG for each reproduction, and one page that says which claims hold."""

import io
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from resolvent.simulate.plots import COLOURS, colour_of, style
from resolvent.study.reproduction import better

__all__ = ["claims_table", "cpu_time", "notes", "page", "redraw", "write_page", "write_results"]

_MARK = {"holds": "holds", "holds in part": "**in part**", "does not hold": "**does not hold**"}
_SHORT = 110  # characters of JSON that need no lines of their own
_PALE = "#A9C5DA"
_MARKERS = "osD^vPX*"


def write_results(record: Mapping[str, Any], folder: Path) -> Path:
    """Write ``NAME.json`` and ``NAME.svg`` (``NAME-quick`` in the small setting), and the page of all there are."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = record["name"] + ("" if record["setting"] == "paper scale" else f"-{record['setting']}")
    path = folder / f"{stem}.json"
    path.write_text(_json(record), encoding="utf-8")
    draw(record, folder / f"{stem}.svg")
    write_page(folder)
    return path


def redraw(folder: Path, name: str | None = None) -> list[Path]:
    """Draw pictures again from their JSON files, and write the page; nothing runs.

    Args:
        folder: of the results.
        name: of the reproduction, in either setting; default: all there are.

    Returns:
        The pictures.
    """
    found = [path for path in sorted(folder.glob("*.json"))
             if name in (None, path.stem, path.stem.removesuffix("-quick"))]
    for path in found:
        draw(json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".svg"))
    if found:
        write_page(folder)
    return [path.with_suffix(".svg") for path in found]


def write_page(folder: Path) -> None:
    """Write the page of all results in a folder, ``README.md``."""
    (folder / "README.md").write_text(page(folder), encoding="utf-8")


def page(folder: Path) -> str:
    """The page of a results folder, from its JSON files alone."""
    records = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]
    lines = ["# What the papers claim, and what comes out", "",
             "Written by `resolvent reproduce NAME` from the JSON files beside it; every verdict is computed. *holds*: "
             "in every seed and for every method that the claim names; *in part*: for some; the numbers say which. "
             "Times are the processor's.", "",
             "| claim | paper | ours: mean ± standard deviation over seeds | verdict | command | time |",
             "|---|---|---|---|---|---|"]
    for _, r in records:
        for says, *cells in claims_table(r):
            row = (f"{says} ({r['figure']})", *cells, f"`{r['command']}`", cpu_time(r))
            lines.append(f"| {' | '.join(row)} |")
    for path, r in records:
        lines += ["", f"## {path.stem}", "", f"{r['title']}. {r['paper']}, {r['figure']}; {r['setting']}, "
                  f"{r['seeds']} seed{'s' if r['seeds'] > 1 else ''}, {r['device']}.", "",
                  f"![{r['title']}]({path.stem}.svg)", "", *notes(r)]
    return "\n".join(lines).rstrip() + "\n"


def notes(record: Mapping[str, Any]) -> list[str]:
    """What a reader should know, a Markdown line each; last what a search chose, of how many."""
    lines = [f"- {note}" for note in record["notes"]]
    for panel, methods in record.get("search", {}).items():
        best = "; ".join(f"{label}: {', '.join(f'{k} = {_value(v)}' for k, v in found['chosen'].items())} "
                         f"(of {len(found['tried'])})" for label, found in methods.items())
        lines.append(f"- Chosen by search, {panel}: {best}.")
    return lines


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def claims_table(record: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Of each claim, as Markdown: what the paper says, its number, ours, the verdict."""
    return [(_cell(claim["says"]), _cell(claim["paper"]) or "-", _ours(claim, record["seeds"]), _MARK[claim["verdict"]])
            for claim in record["claims"]]


def cpu_time(record: Mapping[str, Any]) -> str:
    """How long it took, in the processor's time where that was taken."""
    return f"{record.get('cpu_seconds', record['seconds']):.0f} s"


def _ours(claim: Mapping[str, Any], seeds: int) -> str:
    """The claim's numbers; of many, the range, and the first that are not as claimed."""
    items = claim["items"]
    def text(i: Mapping[str, Any]) -> str:
        failed = "" if i["holds"] == seeds else f" (as claimed in {i['holds']} of {seeds} seeds)"
        mean, std = ("∞" if v is None else f"{v:.3g}" for v in (i["mean"], i["std"]))
        return f"{_cell(i['name'])}: {mean}{'' if seeds == 1 or i['std'] is None else f' ± {std}'}{failed}"
    if len(items) <= 6:
        return "; ".join(map(text, items))
    means = [math.inf if i["mean"] is None else i["mean"] for i in items]
    failed = [i for i in items if i["holds"] < seeds]
    shown = "; ".join(map(text, failed[:6]))
    more = f"; and {len(failed) - 6} more" if len(failed) > 6 else ""
    return (f"{len(items) - len(failed)} of {len(items)} as claimed, {min(means):.3g} to {max(means):.3g}"
            f"{'. Not so: ' if failed else ''}{shown}{more}").replace("inf", "∞")


def draw(record: Mapping[str, Any], path: Path) -> None:
    """All panels, on the paper's axes; curves that they share are named once, below."""
    pictures = [(title, _view(record, panel), how) for title, panel in record["panels"].items()
                for how in panel["draw"]]
    columns = min(record.get("columns") or len(pictures), len(pictures))
    rows = -(-len(pictures) // columns)
    ours = {"svg.hashsalt": "resolvent", "font.size": 9, "axes.titlesize": 9,
            "font.sans-serif": ["DejaVu Sans", "Verdana"]}
    with mpl.rc_context({**style, **ours}):
        most = max([len(panel["methods"]) for _, panel, how in pictures if how["x"] == "methods"], default=0)
        height = max(4.4 if rows == 1 else 3.1 * rows + 0.6, rows * (0.19 * most + 0.9))
        figure = Figure(figsize=(max(5.6, 3.6 * columns), height), layout="constrained")
        for i, (title, panel, how) in enumerate(pictures):
            axes = figure.add_subplot(rows, columns, i + 1)
            drawn = _bars if how["x"] == "methods" else _curves if how["x"] in _AXES else _sweep
            drawn(axes, panel, how)
            axes.set_title(title)
            value = axes.set_xlabel if drawn is _bars else axes.set_ylabel
            if i % columns == 0 or panel["axis"] != pictures[i - 1][1]["axis"] or drawn is _bars:
                value(panel["axis"])
            if panel["log"]:
                _log(axes, "x" if drawn is _bars else "y")
            if drawn is _bars and i % columns and list(panel["methods"]) == list(pictures[i - 1][1]["methods"]):
                axes.set_yticklabels([])  # they stand at the left
        _name_curves(figure, columns)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Title": record["title"]})
    path.write_text(_compact(text.getvalue()), encoding="utf-8")


def _compact(svg: str) -> str:
    """The same picture to a tenth of a point: paths and tags in one line each, and no digits that nobody sees."""
    def short(tag: re.Match[str]) -> str:
        text = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.1f}".rstrip("0").rstrip("."), tag[0])
        return re.sub(r"\s+", " ", text).replace(" L ", " ").replace(' "', '"').replace(" />", "/>")

    return re.sub(r"<[a-z][^>]*>", short, svg)


_AXES = {"rounds": "communication rounds", "seconds": "simulated seconds", "bytes": "bytes sent, both ways",
         "bytes_up": "bytes sent by the parties", "lambda": "lambda (0: own model, 1: shared model)"}


def _view(record: Mapping[str, Any], panel: Mapping[str, Any]) -> dict[str, Any]:
    return {"axis": record["axis"], "log": record["log"], **panel}


def _log(axes: Axes, which: Literal["x", "y"]) -> None:
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    if high < 50 * low:  # so few decades have too few powers of ten to read by
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
        axis.set_major_formatter("{x:g}")
    else:
        axis.set_major_locator(LogLocator(numticks=9))
    axis.set_minor_locator(NullLocator())


def _name_curves(figure: Figure, columns: int) -> None:
    """One legend below where all pictures have the same curves, or the first of them, else one in each."""
    legends = [axes.get_legend_handles_labels() for axes in figure.axes]
    named = [names for names in legends if names[1]]
    most = max(named, key=lambda names: len(names[1]), default=([], []))
    if named and all(labels == most[1][:len(labels)] for _, labels in named):
        width = min(len(most[1]), 3 if columns == 1 else 2 * columns)
        figure.legend(*most, loc="outside lower center", ncols=width, fontsize=8)
    else:
        for axes, (_, labels) in zip(figure.axes, legends, strict=True):
            if labels:
                axes.legend(fontsize=7)


def _curves(axes: Axes, panel: Mapping[str, Any], how: Mapping[str, Any]) -> None:
    """Mean over seeds against rounds, with the band from the least to the largest."""
    methods = panel["methods"]
    first = max(m["first"]["mean"] or 0 for m in methods.values())
    for label, (colour, dashes) in colour_of(list(methods)).items():
        m = methods[label]
        mean, low, high = (_drawable(m[key], panel["log"]) for key in ("mean", "low", "high"))
        axes.plot(m[how["x"]], mean, dashes, color=colour, label=label, linewidth=1.5)
        if low != high:  # more than one seed
            axes.fill_between(m[how["x"]], low, high, color=colour, alpha=0.15, linewidth=0)
    top = max((v for m in methods.values() for v in m["mean"] if v is not None), default=1)
    if top > 1e3 * first > 0:  # a method that diverges must not press the others flat
        axes.set_ylim(top=1e3 * first)
    axes.set_xlabel(_AXES[how["x"]])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=how["x"] == "rounds"))


def _sweep(axes: Axes, panel: Mapping[str, Any], how: Mapping[str, Any]) -> None:
    """Last values against a parameter, a line for each value of another; level lines for methods without it."""
    lines: dict[Any, list[tuple[float, float, float]]] = {}
    levels: dict[str, float | None] = {}
    for label, m in panel["methods"].items():
        value, spread = m["final"]["mean"], m["final"]["std"]
        if how["x"] not in m["point"]:
            levels[label] = value
        elif value is not None and (value > 0 or not panel["log"]):
            lines.setdefault(m["point"].get(how["lines"], ""), []).append((m["point"][how["x"]], value, spread))
    names = list(lines) if how["lines"] == "method" else sorted(lines)
    for i, line in enumerate(names):
        x, y, error = zip(*sorted(lines[line]), strict=True)
        low = [min(e, 0.9 * v) if panel["log"] else e for e, v in zip(error, y, strict=True)]
        name = line if isinstance(line, str) else f"{how['lines']} = {line:g}"
        axes.errorbar(x, y, (low, error), color=COLOURS[i % len(COLOURS)], marker=_MARKERS[i % len(_MARKERS)],
                      label=name or None, markersize=4, linewidth=1.3, capsize=2)
    for i, (label, value) in enumerate(levels.items(), len(names)):
        if value is not None:
            axes.axhline(value, color=COLOURS[i % len(COLOURS)], linestyle=("--", ":", "-.")[i % 3], label=label,
                         linewidth=1.3)
    values = sorted({x for points in lines.values() for x, _, _ in points})
    if how.get("log_x", True):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(values, [f"{x:g}" for x in values], rotation=30)
    axes.set_xlabel(how["x"])


def _bars(axes: Axes, panel: Mapping[str, Any], how: Mapping[str, Any]) -> None:
    """A bar of the last value for each method, from the top down, with its number; the best, and those less than a
    hundredth of it behind, in a strong colour.
    """
    methods, measure = panel["methods"], panel["measure"]
    known = {label: m["final"] for label, m in methods.items() if m["final"]["mean"] is not None}
    at = {label: -i for i, label in enumerate(methods)}
    means = [final["mean"] for final in known.values()] or [0.0]
    best = max(means) if better(measure) == "highest" else min(means)
    for label, final in known.items():
        strong = abs(final["mean"] - best) <= 0.01 * abs(best)
        axes.barh(at[label], final["mean"], xerr=final["std"] or None, color=COLOURS[0] if strong else _PALE,
                  height=0.7, error_kw={"linewidth": 1, "capsize": 2})
        end = final["mean"] + (final["std"] or 0)
        axes.annotate(f" {final['mean']:.4g}", (end, at[label]), va="center", fontsize=7)
    for label in methods.keys() - known:
        axes.annotate(" diverged", (0, at[label]), va="center", fontsize=7)
    axes.set_yticks(list(at.values()), list(at))
    axes.set_ylim(0.5 - len(methods), 0.5)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)


def _drawable(values: list[float | None], log: bool) -> list[float]:
    return [v if v is not None and (v > 0 or not log) else math.nan for v in values]


def _json(record: Mapping[str, Any]) -> str:
    """Indented, but what is short, and a curve, on one line."""
    def text(value: Any, depth: int) -> str:
        plain = json.dumps(value, allow_nan=False, ensure_ascii=False)
        nested = isinstance(value, list) and any(isinstance(v, dict | list | str) for v in value)
        if len(plain) <= _SHORT or not (isinstance(value, Mapping) or nested):
            return plain
        begin, end = "\n" + " " * (depth + 1), "\n" + " " * depth
        if isinstance(value, Mapping):
            parts = [f"{json.dumps(k, ensure_ascii=False)}: {text(v, depth + 1)}" for k, v in value.items()]
            return f"{{{begin}{f',{begin}'.join(parts)}{end}}}"
        return f"[{begin}{f',{begin}'.join(text(v, depth + 1) for v in value)}{end}]"

    return text(record, 0) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
