"""The table of the page and the picture, from the JSON file."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["draw", "markdown"]

_OURS = ("alone", "FedAvg", "robust", "pooled")
_PEERS = ("logistic regression", "ridge", "histogram boosting", "XGBoost")
_TITLES = {"alone": "Resolvent, alone", "pooled": "Resolvent, pooled (bound)", "robust": "robust interpolation"}
_ADVICE = ("join", "probably join", "no difference", "stay alone")


def markdown(record: dict[str, Any]) -> str:
    """A table of the scores, with a column per table, and one of the decisions."""
    tables = record["tables"]
    lines = ["| method | " + " | ".join(table["table"] for table in tables) + " |", "|---" * (len(tables) + 1) + "|"]
    labels = [*_OURS, *(f"{peer}, {training}" for peer in _PEERS for training in ("alone", "pooled"))]
    for label in labels:
        cells = [next((_score(m) for m in table["methods"] if m["method"] == label), "") for table in tables]
        lines.append(f"| {_TITLES.get(label, label)} | " + " | ".join(cells) + " |")
    lines += ["", "| kind of model | " + " | ".join(table["table"] for table in tables) + " |",
              "|---" * (len(tables) + 1) + "|"]
    for family in ("resolvent", *_PEERS):
        cells = [next((_counts(d["advice"]) for d in table["decisions"] if d["family"] == family), "")
                 for table in tables]
        lines.append(f"| {family} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _score(method: dict[str, Any]) -> str:
    value, low, high = (f"{number:.3f}" if abs(number) < 10 else f"{number:,.0f}" for number in method["score"])
    return f"{value} [{low}, {high}]"


def _counts(advice: dict[str, int]) -> str:
    return ", ".join(str(advice.get(name, 0)) for name in _ADVICE)


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw the scores with their intervals, a panel per table."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    for axes, table in zip(figure.subplots(2, 3).flat, record["tables"], strict=False):
        methods = [m for m in table["methods"] if m["method"] in _OURS or ", " in m["method"]][::-1]
        for i, method in enumerate(methods):
            value, low, high = method["score"]
            color = ("tab:blue" if method["method"] in _OURS else
                     "tab:orange" if method["method"].endswith("pooled") else "gray")
            axes.errorbar(value, i, xerr=[[value - low], [high - value]], fmt="o", markersize=4, color=color)
        axes.set_yticks(range(len(methods)), [m["method"] for m in methods], fontsize=7)
        axes.tick_params(axis="x", labelsize=7)
        axes.set_title(f"{table['table']}, {table['sites']} sites", fontsize=9)
        axes.set_xlabel(f"{table['score'].replace('_', ' ')}, less is better", fontsize=7)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tables"}):
        figure.savefig(path, metadata={"Date": None})
