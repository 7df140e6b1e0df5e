"""The style of all figures, and the learning curves of runs."""

from collections.abc import Sequence
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING

from resolvent.simulator.record.metrics_table import means_by

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, whose colours colour-blind people can distinguish; black is reserved for the axes.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C6BB1", "#7F7F00")
_DASHES = ("-", "--", "-.", ":")

style: dict[str, object] = {
    "font.size": 10, "axes.titlesize": 10, "axes.labelsize": 10, "legend.fontsize": 9, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
    "svg.fonttype": "none", "font.family": "sans-serif",
}
# Small type, thin lines, and fonts that are embedded as they are.
_print_style: dict[str, object] = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7, "lines.linewidth": 1.2, "axes.linewidth": 0.6, "pdf.fonttype": 42, "text.parse_math": False,
}


def colour_of(methods: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a line style for each method, in order; ``A + something`` has the colour of A and another style."""
    families: dict[str, list[str]] = {}
    for method in methods:
        base = method.partition(" + ")[0]
        families.setdefault(base if base in methods else method, []).append(method)
    styles = {method: (COLOURS[i % len(COLOURS)], _DASHES[(i // len(COLOURS) + j) % len(_DASHES)])
              for i, family in enumerate(families.values()) for j, method in enumerate(family)}
    return {method: styles[method] for method in methods}


@cache
def _picture() -> type["Figure"]:
    """The class of figures that a notebook shows without a call of pyplot; made when the first is needed."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            buffer = BytesIO()
            self.savefig(buffer, format="png", dpi=130)
            return buffer.getvalue()

    return Picture


def new_figure(width: float = 5.0, height: float = 3.4) -> "tuple[Figure, Axes]":
    """A figure in this style, outside pyplot's global state. A notebook shows it as a picture."""
    import matplotlib as mpl

    with mpl.rc_context(style):
        figure = _picture()(figsize=(width, height), layout="constrained")
        return figure, figure.add_subplot()


def new_panels(rows: int, columns: int, width: float, height: float) -> "tuple[Figure, list[Axes]]":
    """A figure with several axes, which is drawn in a ``print_context``."""
    figure = _picture()(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def print_context() -> "AbstractContextManager[None]":
    """A context in which figures are drawn and written for print."""
    import matplotlib as mpl

    return mpl.rc_context(style | _print_style)


def learning_curves(axes: "Axes", metrics: "pd.DataFrame", metric: str, split: str) -> None:
    """Mean over parties against rounds, with the band from the 10th to the 90th percentile of the parties."""
    rows = metrics[(metrics["metric"] == metric) & (metrics["split"] == split)]
    methods = list(dict.fromkeys(rows["method"]))
    for method, (colour, dashes) in colour_of(methods).items():
        by_round = rows[rows["method"] == method].groupby("round")["value"]
        mean = means_by(rows[rows["method"] == method], "round")  # with a gap where a party's model diverged
        low, high = (by_round.quantile(q).where(mean.notna()) for q in (0.1, 0.9))
        axes.plot(mean.index, mean, dashes, color=colour, label=method)
        axes.fill_between(mean.index, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel(f"{split} {metric.replace('_', ' ')}")
    if methods:
        axes.legend()
