"""The picture of the page, from the JSON file."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["draw"]

_OURS = ("alone", "FedAvg", "robust", "pooled")


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
