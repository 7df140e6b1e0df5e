"""The pictures of a regression: estimates, forest plots, and which coefficients differ where."""

from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.comparisons.regression.laws import quantile
from resolvent.simulator.record.plots import COLOURS, new_figure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from resolvent.comparisons.regression.differences import Differences
    from resolvent.comparisons.regression.fit import Fit
    from resolvent.comparisons.regression.site_fits import SiteFits

_ROW = 0.28  # inches
_LABEL = 30  # characters
_WIDE = 200.0  # ratio of the ends of an axis with ticks at powers of ten only


def estimates_figure(fit: "Fit") -> "Figure":
    """A point and an interval for each coefficient but intercepts; as ratios on a logarithmic axis if there are any."""
    table = fit.table
    table = table[[not str(name).endswith("Intercept") and name not in fit.model.extra for name in table.index]]
    figure, axes = new_figure(5.6, 1.0 + _ROW * max(len(table), 1))
    columns = ("estimate", "low", "high") if fit.effect is None else (
        fit.effect, f"{fit.effect} low", f"{fit.effect} high")
    _intervals(axes, [str(name) for name in table.index], *(table[name].to_numpy() for name in columns),
               is_ratio=fit.effect is not None)
    axes.set_xlabel(f"{fit.effect or 'coefficient'} with {fit.level:.0%} interval")
    return figure


def forest_figure(fit: "Fit", sites: "SiteFits", line: "Mapping[Any, Any]", parameter: str) -> "Figure":
    """The sites' own estimates of one parameter, and the common one at the bottom; a square's area is its weight.

    Args:
        line: I2, Q and p of the parameter.
    """
    j = fit.names.index(parameter)
    common = fit.table.loc[parameter]
    is_ratio = fit.effect is not None and parameter not in fit.model.extra
    b = np.append(sites.estimates[:, j], common["estimate"])
    error = np.append(sites.errors[:, j], common["standard error"])
    half = quantile(fit.level, None) * error
    figure, axes = new_figure(5.6, 1.1 + _ROW * len(b))
    shown = np.exp if is_ratio else np.asarray
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = 1 / error**2
    _intervals(axes, [*fit.model.sites, "common"], shown(b), shown(b - half), shown(b + half), is_ratio=is_ratio,
               sizes=np.append(weight[:-1] / np.nanmax(weight[:-1]), 1.0))
    axes.axvline(float(shown(b[-1])), color=COLOURS[4], linewidth=0.8, linestyle=":")
    axes.set_title(f"{parameter}: I² {line['I2']:.0%}, Q {line['Q']:.1f}, p {line['p']:.2g}", loc="left")
    axes.set_xlabel(f"{fit.effect if is_ratio else 'coefficient'} with {fit.level:.0%} interval")
    return figure


def differences_figure(differences: "Differences") -> "Figure":
    """Parameters by sites: the sparse difference from the common vector, in units without the columns' scale."""
    scaled = differences.scaled
    rows, columns = scaled.T.shape
    figure, axes = new_figure(max(3.6, 2.2 + 0.5 * columns), 1.4 + _ROW * rows)
    limit = max(float(np.abs(scaled.to_numpy()).max()), 1e-12)
    image = axes.imshow(scaled.T.to_numpy(), cmap="PuOr_r", vmin=-limit, vmax=limit, aspect="auto")
    axes.grid(visible=False)
    axes.set_xticks(range(columns), [_shortened(str(name)) for name in scaled.index], rotation=45, ha="right")
    axes.set_yticks(range(rows), [_shortened(str(name)) for name in scaled.columns])
    difference = differences.differences.T.to_numpy()
    for j, i in zip(*np.nonzero(difference), strict=True):
        colour = "white" if abs(scaled.T.to_numpy()[j, i]) > 0.6 * limit else "black"
        axes.text(i, j, f"{difference[j, i]:+.2g}", ha="center", va="center", fontsize=8, color=colour)
    if not np.any(difference):
        axes.set_title("no coefficient differs", loc="left")
    else:
        axes.set_title("difference from the common coefficient", loc="left")
        figure.colorbar(image, ax=axes, label="standardised", fraction=0.05)
    return figure


def _intervals(axes: "Axes", names: list[str], centre: np.ndarray, low: np.ndarray, high: np.ndarray, *, is_ratio: bool,
               sizes: np.ndarray | None = None) -> None:
    """A row for each name; what could not be estimated has none."""
    height = np.arange(len(names))[::-1]
    known = np.isfinite(centre) & np.isfinite(low) & np.isfinite(high)
    if is_ratio:
        _ratio_axis(axes, low[known], high[known])
    axes.hlines(height[known], low[known], high[known], color=COLOURS[0], linewidth=1.4)
    area = 36.0 if sizes is None else 12 + 60 * np.nan_to_num(sizes)[known]
    axes.scatter(centre[known], height[known], s=area, marker="s", color=COLOURS[0], zorder=3)
    axes.axvline(1.0 if is_ratio else 0.0, color="#888888", linewidth=0.8)
    axes.set_yticks(height, [_shortened(name) for name in names])
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.grid(visible=False, axis="y")


def _ratio_axis(axes: "Axes", low: np.ndarray, high: np.ndarray) -> None:
    """A logarithmic axis whose ticks are plain numbers: even ones, or 1, 2, 5, 10, ... over more than tenfold."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    axes.set_xscale("log")
    span = float(high.max() / low.min()) if low.size else 1.0
    steps = (1.0, 2.0, 5.0) if span < _WIDE else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=steps) if span > 10 else MaxNLocator(5))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _shortened(name: str) -> str:
    return name if len(name) <= _LABEL else name[:_LABEL - 1] + "…"
