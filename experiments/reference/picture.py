"""The picture of the table: methods and problems, with and without malicious parties."""

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.reference.readings import Table, order, shown
from experiments.reference.rows import Layer
from resolvent.plots import style

TITLES: dict[Layer, str] = {"honest": "all parties honest", "attacked": "every fifth party malicious"}


def draw(table: Table) -> Figure:
    """A panel for each layer: the colour is the rank on the problem, the number the mean score."""
    methods, _ = order(table, "honest")
    layers = [layer for layer in TITLES if order(table, layer)[1]]
    with mpl.rc_context({**style, "axes.grid": False, "svg.hashsalt": "resolvent"}):
        widths = [len(order(table, layer)[1]) for layer in layers]
        figure = Figure(figsize=(2.4 + 0.47 * sum(widths), 1.6 + 0.2 * len(methods)), layout="constrained")
        panels = figure.subplots(1, len(layers), sharey=True, squeeze=False, width_ratios=widths)[0]
        for axes, layer in zip(panels, layers, strict=True):
            image = _draw_panel(axes, table, methods, layer)
        bar = figure.colorbar(image, ax=panels, ticks=[0, 0.5, 1], fraction=0.02, pad=0.01)
        bar.ax.set_yticklabels(["best", "middle", "last"])
    return figure


def _draw_panel(axes: Any, table: Table, methods: list[str], layer: Layer) -> Any:
    problems = order(table, layer)[1]
    scores = pd.DataFrame({p.name: [table.score(p.name, m, layer) for m in methods] for p in problems}, index=methods)
    ranks = scores.rank(ascending=False)
    places = ((ranks - 1) / (ranks.max() - 1).clip(lower=1)).to_numpy()
    image = axes.imshow(np.ma.masked_invalid(places), cmap="RdYlBu_r", vmin=0, vmax=1, aspect="auto")
    for i, method in enumerate(methods):
        for j, problem in enumerate(problems):
            cell = table.rows.get((problem.name, layer, method))
            text = "?" if cell is None else "" if cell.outcome == "refused" else shown(cell).replace("diverged", "div.")
            axes.text(j, i, text, ha="center", va="center", fontsize=5.5,
                      color="white" if abs(places[i, j] - 0.5) > 0.42 else "black")
    axes.set_xticks(range(len(problems)), [p.name for p in problems], rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(methods)), methods)
    axes.tick_params(labelsize=7, length=0)
    axes.set_title(TITLES[layer], fontsize=8)
    return image
