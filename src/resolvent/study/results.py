"""The results folder: a JSON and an SVG for each reproduction, and one page that says which claims hold."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from resolvent.simulate.plots import COLOURS, colour_of, style

__all__ = ["page", "write_results"]

_MARK = {"holds": "holds", "holds in part": "**in part**", "does not hold": "**does not hold**"}
_MARKERS = "osD^vPX*"


def write_results(record: Mapping[str, Any], folder: Path) -> Path:
    """Write ``NAME.json`` and ``NAME.svg`` (``NAME-quick`` in the small setting), and the page of all there are."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = record["name"] if record["setting"] == "paper scale" else f"{record['name']}-quick"
    path = folder / f"{stem}.json"
    path.write_text(_json(record), encoding="utf-8")
    draw(record, folder / f"{stem}.svg")
    (folder / "README.md").write_text(page(folder), encoding="utf-8")
    return path


def page(folder: Path) -> str:
    """The page of a results folder, from its JSON files alone."""
    records = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]
    lines = ["# What the papers claim, and what comes out", "",
             "Written by `resolvent reproduce NAME` from the JSON files beside it; every verdict is computed. *holds*: "
             "in every seed and for every method that the claim names; *in part*: for some; the numbers say which.", "",
             "| claim | paper | ours: mean ± standard deviation over seeds | verdict | command | time |",
             "|---|---|---|---|---|---|"]
    for _, r in records:
        for claim in r["claims"]:
            cells = (f"{_cell(claim['says'])} ({r['figure']})", _cell(claim["paper"]) or "-", _ours(claim, r["seeds"]),
                     _MARK[claim["verdict"]], f"`{r['command']}`", f"{r['seconds']:.0f} s")
            lines.append(f"| {' | '.join(cells)} |")
    for path, r in records:
        lines += ["", f"## {path.stem}", "", f"{r['title']}. {r['paper']}, {r['figure']}; {r['setting']}, "
                  f"{r['seeds']} seed{'s' if r['seeds'] > 1 else ''}, {r['device']}.", "",
                  f"![{r['title']}]({path.stem}.svg)", "", *(f"- {note}" for note in r["notes"])]
    return "\n".join(lines).rstrip() + "\n"


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
    """All panels side by side, on the paper's axes."""
    pictures = [(title, panel["methods"], how) for title, panel in record["panels"].items() for how in panel["draw"]]
    ours = {"svg.hashsalt": "resolvent", "svg.fonttype": "path", "font.size": 9, "axes.titlesize": 9}
    with mpl.rc_context({**style, **ours}):
        figure = Figure(figsize=(max(5.6, 3.6 * len(pictures)), 4.4), layout="constrained")
        for i, (title, methods, how) in enumerate(pictures):
            axes = figure.add_subplot(1, len(pictures), i + 1)
            (_curves if how["x"] == "rounds" else _sweep)(axes, methods, how)
            axes.set_title(title)
            if i == 0:
                axes.set_ylabel(record["axis"])
            if record["log"]:
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(numticks=9))
                axes.yaxis.set_minor_locator(NullLocator())
        legends = [axes.get_legend_handles_labels() for axes in figure.axes]
        if all(labels == legends[0][1] for _, labels in legends):
            columns = min(len(legends[0][1]), 3 if len(pictures) == 1 else 2 * len(pictures))
            figure.legend(*legends[0], loc="outside lower center", ncols=columns, fontsize=8)
        else:
            for axes in figure.axes:
                axes.legend(fontsize=7)
        figure.savefig(path, metadata={"Date": None, "Creator": None, "Title": record["title"]})


def _curves(axes: Axes, methods: Mapping[str, Any], how: Mapping[str, Any]) -> None:
    """Mean over seeds against rounds, with the band from the least to the largest."""
    first = max(m["first"]["mean"] or 0 for m in methods.values())
    for label, (colour, dashes) in colour_of(list(methods)).items():
        m = methods[label]
        mean, low, high = (_drawable(m[key]) for key in ("mean", "low", "high"))
        axes.plot(m["rounds"], mean, dashes, color=colour, label=label, linewidth=1.5)
        axes.fill_between(m["rounds"], low, high, color=colour, alpha=0.15, linewidth=0)
    top = max((v for m in methods.values() for v in m["mean"] if v is not None), default=1)
    if top > 1e3 * first > 0:  # a method that diverges must not press the others flat
        axes.set_ylim(top=1e3 * first)
    axes.set_xlabel("communication rounds")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))


def _sweep(axes: Axes, methods: Mapping[str, Any], how: Mapping[str, Any]) -> None:
    """Last values against a parameter, a line for each value of another."""
    lines: dict[float, list[tuple[float, float, float]]] = {}
    for m in methods.values():
        value, spread = m["final"]["mean"], m["final"]["std"]
        if value is not None and value > 0:
            lines.setdefault(m["point"][how["lines"]], []).append((m["point"][how["x"]], value, spread))
    for i, (line, points) in enumerate(sorted(lines.items())):
        x, y, error = zip(*sorted(points), strict=True)
        low = [min(e, 0.9 * v) for e, v in zip(error, y, strict=True)]
        axes.errorbar(x, y, (low, error), color=COLOURS[i % len(COLOURS)], marker=_MARKERS[i % len(_MARKERS)],
                      label=f"{how['lines']} = {line:g}", markersize=4, linewidth=1.3, capsize=2)
    axes.set_xscale("log")
    values = sorted({x for points in lines.values() for x, _, _ in points})
    axes.set_xticks(values, [f"{x:g}" for x in values], rotation=30)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(how["x"])


def _drawable(values: list[float | None]) -> list[float]:
    return [v if v is not None and v > 0 else math.nan for v in values]


def _json(record: Mapping[str, Any]) -> str:
    """Indented, but a curve on one line."""
    curves: list[str] = []

    def flat(value: Any) -> Any:
        if isinstance(value, list) and len(value) > 3 and not isinstance(value[0], dict | str):
            curves.append(json.dumps(value, allow_nan=False))
            return f"@@{len(curves) - 1}@@"
        if isinstance(value, Mapping):
            return {k: flat(v) for k, v in value.items()}
        return [flat(v) for v in value] if isinstance(value, list) else value

    text = json.dumps(flat(record), indent=1, allow_nan=False, ensure_ascii=False)
    for i, curve in enumerate(curves):
        text = text.replace(f'"@@{i}@@"', curve, 1)
    return text + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
