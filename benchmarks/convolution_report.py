"""Table and picture of benchmarks/convolutions.py, from its files alone; src/xla_cpu_rewrites/README.md has both."""

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_FOLDER = Path(__file__).parent
_SPEEDS, _FORMS, _PICTURE = (_FOLDER / name for name in (
    "convolutions.json", "convolution_forms.json", "convolutions.svg"))
_SLOW = 0.8
_CLOSE = 1.05


def machine() -> str:
    """The family of the processor: its maker, numbers of its design, and the width of its vectors."""
    facts = Path("/proc/cpuinfo")
    if not facts.exists():
        return platform.processor() or platform.machine()
    values = dict(line.split(":", 1) for line in facts.read_text().split("\n\n")[0].splitlines() if ":" in line)
    of_name = {name.strip(): value.strip() for name, value in values.items()}
    flags = of_name.get("flags", "").split()
    vectors = next((name for name in ("avx512f", "avx2", "avx") if name in flags), "no avx")
    return " ".join([of_name.get("vendor_id", platform.machine()), "family", of_name.get("cpu family", "?"), "model",
                     of_name.get("model", "?") + ",", vectors])


def summary_of_speeds(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Number of operations, geometric mean, share at or above 1, and slowest."""
    speeds = np.array([row["speed"] for row in rows])
    return {"operations": len(rows), "geometric_mean": _mean(speeds),
            "share_at_least_1": round(float((speeds >= 1).mean()), 3), "slowest": float(speeds.min())}


def summary_of_forms(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Regret of the conditions, and by how much each choice was faster and slower than the chosen program."""
    regrets = np.array([row["regret"] for row in rows])
    changes: dict[str, list[float]] = {}
    for row in rows:
        for name, us in row["others"].items():
            changes.setdefault(name, []).append(us / row["us"])
    return {"operations": len(rows), "mean_regret": _mean(regrets),
            "share_within_5_percent": round(float((regrets <= _CLOSE).mean()), 3), "largest": float(regrets.max()),
            "time_of_others": {name: {"differ": len(values), "least": round(min(values), 3), "mean": _mean(values),
                                      "most": round(max(values), 3)} for name, values in changes.items()}}


def _mean(values: Any) -> float:
    return round(float(np.exp(np.log(values).mean())), 3)


def text() -> str:
    """What the page says of the files: sentences and a table in Markdown."""
    facts = json.loads(_SPEEDS.read_text())
    rows = facts["rows"]
    lines = [f"`{facts['command']}`, {facts['machine']}, one core: of {facts['operations']} operations "
             f"{facts['share_at_least_1']:.0%} are at least as fast as PyTorch {facts['torch']}; the geometric mean is "
             f"{facts['geometric_mean']:.2f}. PyTorch's time divided by ours:", "",
             "| operations | number | geometric mean | at least 1 | slowest |", "|---|---|---|---|---|"]
    for family in dict.fromkeys(row["family"] for row in rows):
        of_family = [row for row in rows if row["family"] == family]
        summary = summary_of_speeds(of_family)
        slowest = min(of_family, key=lambda row: row["speed"])
        lines.append(f"| {family} | {summary['operations']} | {summary['geometric_mean']:.2f} | "
                     f"{summary['share_at_least_1']:.0%} | {summary['slowest']:.2f}: {slowest['case']}, "
                     f"{slowest['operation']} |")
    slow = sorted((row for row in rows if row["speed"] < _SLOW), key=lambda row: row["speed"])
    lines += ["", f"Below {_SLOW}: " + "; ".join(f"{r['family']} {r['case']}, {r['operation']} {r['speed']:.2f}"
                                                 for r in slow) + "." if slow else f"None is below {_SLOW}."]
    if _FORMS.exists():
        stored = json.loads(_FORMS.read_text())
        for name in dict.fromkeys(row["machine"] for row in stored["rows"]):
            summary = summary_of_forms([row for row in stored["rows"] if row["machine"] == name])
            lines += ["", f"Choice of the form (`{stored['command']}`, {name}): the chosen program is the fastest of "
                      f"all measured ones, or at most {_CLOSE - 1:.0%} slower, in "
                      f"{summary['share_within_5_percent']:.0%} of {summary['operations']} convolutions; its time is "
                      f"{summary['mean_regret']:.3f} times the least in the mean, {summary['largest']:.2f} "
                      "times at most."]
    return "\n".join(lines)


def report() -> None:
    """Draw the picture, and print what the page says."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from resolvent.simulator.record.plots import COLOURS, style

    rows = json.loads(_SPEEDS.read_text())["rows"]
    families = list(dict.fromkeys(row["family"] for row in rows))
    names = list(dict.fromkeys(row["operation"] for row in rows))
    with mpl.rc_context({**style, "svg.hashsalt": "resolvent"}):
        figure = Figure(figsize=(8.6, 4.2), layout="constrained")
        axes = figure.subplots()
        for i, name in enumerate(names):
            selected = [row for row in rows if row["operation"] == name]
            axes.plot([row["speed"] for row in selected],
                      [families.index(row["family"]) + 0.15 * (i - (len(names) - 1) / 2) for row in selected], "o",
                      markersize=4, color=COLOURS[i], label=name)
        axes.axvline(1, color="0.5", linewidth=1)
        axes.set_xscale("log")
        ticks = (0.25, 0.5, 1, 2, 4, 8)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set_yticks(range(len(families)), families)
        axes.invert_yaxis()
        axes.set_xlabel("times as fast as PyTorch, one core")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        figure.savefig(_PICTURE, metadata={"Date": None})
    print(text())
