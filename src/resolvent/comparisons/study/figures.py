"""The figures of a study, as wide as a column or a page of a paper."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.metrics import GAP, format_value, title_of
from resolvent.comparisons.study.costs import bytes_by_round
from resolvent.comparisons.study.differences import differences
from resolvent.comparisons.study.ranks import Ranks
from resolvent.comparisons.study.scores import curves, last_scores, scores_by_round
from resolvent.predict.intervals import Interval, mean_interval
from resolvent.simulator.record.plots import colour_of, new_panels

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from resolvent.comparisons.study.differences import Unit

Kind = Literal["curves", "traffic", "parties", "gains", "differences", "ranks"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Band = Literal["seeds", "parties"]
_Draw = Callable[["Axes", Evidence], None]
_COLUMN, _PAGE = 3.35, 6.9  # inches
_MAX_NAMED_SITES = 12
_MAX_TITLE = 24  # characters of a method's name at an axis


def _grid(evidences: Mapping[str, Evidence], draw: _Draw, *, height: float = 2.2, legend: bool = True) -> "Figure":
    """One panel for each data set, with one legend for all.

    Args:
        evidences: name of a data set -> its measurements.
        legend: whether the methods need a legend.
    """
    columns = min(len(evidences), 3)
    rows = math.ceil(len(evidences) / columns)
    methods = list(dict.fromkeys(m for evidence in evidences.values() for m in evidence.methods))
    of_legend = 0.16 * math.ceil(len(methods) / (2 if columns == 1 else 4)) if legend else 0.0
    figure, axes = new_panels(rows, columns, _COLUMN if columns == 1 else _PAGE, height * rows + of_legend)
    for panel, (name, evidence) in zip(axes, evidences.items(), strict=False):
        draw(panel, evidence)
        if len(evidences) > 1:
            panel.set_title(name)
    for panel in axes[len(evidences):]:
        panel.set_visible(False)
    if legend:
        lines = {str(line.get_label()): line for panel in axes for line in panel.get_lines()
                 if not str(line.get_label()).startswith("_")}
        figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=2 if columns == 1 else 4)
    return figure


def _draw_curves(axes: "Axes", evidence: Evidence, *, band: Band = "seeds") -> None:
    """The mean score over the parties against rounds, with a band.

    Args:
        band: ``seeds``: one standard deviation of the mean over the seeds; ``parties``: the 10th to the 90th percentile
            of the parties.
    """
    of_rounds, of_seeds = scores_by_round(evidence), curves(evidence)
    for method, (colour, dashes) in colour_of(evidence.methods).items():
        mean = of_seeds[method].mean()
        _line(axes, mean.index.to_numpy(float), mean, evidence, colour, dashes, method)
        if band == "parties":
            values = of_rounds[of_rounds["method"] == method].groupby("round")["value"]
            low, high = (values.quantile(q).where(np.isfinite(mean)) for q in (0.1, 0.9))
        else:
            spread = of_seeds[method].std()
            low, high = mean - spread, mean + spread
        axes.fill_between(mean.index, _shown(low, evidence), _shown(high, evidence), color=colour, alpha=0.18,
                          linewidth=0)
    axes.set_xlabel("rounds")
    _label_score(axes, evidence)
    if evidence.score != GAP:
        _leave_out_beginning(axes, [table.mean() for table in of_seeds.values()], evidence)


def _leave_out_beginning(axes: "Axes", means: "list[pd.Series[float]]", evidence: Evidence) -> None:
    """Limit the scores to those after a tenth of the rounds, which are between close methods."""
    values = np.concatenate([_shown(mean[mean.index >= 0.1 * mean.index.max()], evidence) for mean in means])
    values = values[np.isfinite(values)]
    if len(values) and np.ptp(values) > 0:
        margin = 0.06 * float(np.ptp(values))
        axes.set_ylim(values.min() - margin, values.max() + margin)


def _draw_traffic(axes: "Axes", evidence: Evidence) -> None:
    """The mean score against the bytes that all parties have received and sent, the mean over the seeds."""
    of_seeds = curves(evidence)
    for method, (colour, dashes) in colour_of(evidence.methods).items():
        mean = of_seeds[method].mean()
        traffic = bytes_by_round(evidence, method, evidence.seeds[0])
        if traffic is None or not traffic.sum():
            value = _shown(mean, evidence)
            axes.axhline(value[-1], color=colour, linestyle=dashes, linewidth=0.8, label=method)
            continue
        total = traffic.cumsum().reindex(mean.index).fillna(0.0).to_numpy(np.float64) / 1e6
        _line(axes, total, mean, evidence, colour, dashes, method)
    axes.set_xlabel("MB received and sent")
    _label_score(axes, evidence)


def _draw_parties(axes: "Axes", evidence: Evidence) -> None:
    """The distribution of the parties' last scores, means over the seeds: a box and a point for each party."""
    table = last_scores(evidence).groupby(level="method", sort=False).mean()
    names, colours = list(table.index), colour_of(evidence.methods)
    for position, method in enumerate(names):
        values = _shown(table.loc[method], evidence)
        values = values[np.isfinite(values)]
        colour = colours[method][0]
        axes.boxplot(values, positions=[position], widths=0.55, showfliers=False, orientation="horizontal",
                     boxprops={"color": colour}, whiskerprops={"color": colour}, capprops={"color": colour},
                     medianprops={"color": colour, "linewidth": 1.6})
        offsets = 0.18 * np.sin(np.arange(len(values)) * 2.4)  # apart, and the same in every drawing
        axes.plot(values, position + offsets, ".", color=colour, markersize=2.5, alpha=0.6)
    axes.set_yticks(range(len(names)), [_short(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlabel(f"{evidence.split} {title_of(evidence.score)} of a party{_unit(evidence)}")


def _draw_gains(axes: "Axes", evidence: Evidence, *, reference: str) -> None:
    """The gain over a reference at each party: the mean over the seeds with its interval; sorted, if there are many."""
    table, sign = last_scores(evidence), 1.0 if evidence.higher_is_better else -1.0
    parties = list(table.columns)
    methods = [m for m in evidence.methods if m != reference]
    width = 0.8 / max(len(methods), 1)
    is_named = len(parties) <= _MAX_NAMED_SITES
    for number, method in enumerate(methods):
        colour, dashes = colour_of(evidence.methods)[method]
        gains = sign * (table.loc[method] - table.loc[reference]).to_numpy(float) * _factor(evidence)
        intervals = [mean_interval(of_party) for of_party in gains.T]
        mean = np.array([interval.value for interval in intervals])
        if not is_named:
            axes.plot(np.linspace(0, 100, len(mean)), np.sort(mean), dashes, color=colour, label=method)
            continue
        position = np.arange(len(parties)) + (number - (len(methods) - 1) / 2) * width
        ends = np.array([[i.value - i.low, i.high - i.value] for i in intervals]).T if len(gains) > 1 else None
        axes.plot(position, mean, "o", color=colour, markersize=3, label=method)
        axes.errorbar(position, mean, ends, fmt="none", ecolor=colour, elinewidth=0.8)
    axes.axhline(0, color="0.3", linewidth=0.8)
    if is_named:
        axes.set_xticks(range(len(parties)), [_short(str(evidence.parties[int(k)])) for k in parties], rotation=40,
                        ha="right")
    else:
        axes.set_xlabel("parties, from the lowest gain (%)")
    axes.set_ylabel(f"gain over {_short(reference)}{_unit(evidence, of_difference=True)}")


def _draw_differences(axes: "Axes", evidence: Evidence, *, reference: str, by: "Unit | None" = None) -> None:
    """The difference of each method and a reference with its interval; filled where Holm's p-value is below 0.05."""
    table = differences(evidence, reference, by)
    colours, factor = colour_of(evidence.methods), _factor(evidence)
    for position, row in enumerate(table.to_dict("records")):
        interval = Interval(row["difference"], row["low"], row["high"])
        colour = colours[row["method"]][0]
        axes.plot([factor * interval.low, factor * interval.high], [position] * 2, color=colour)
        axes.plot(factor * interval.value, position, "o", color=colour, markersize=4,
                  markerfacecolor=colour if row["holm"] < 0.05 else "white")
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set_yticks(range(len(table)), [_short(name) for name in table["method"]])
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.set_xlabel(f"better than {_short(reference)}{_unit(evidence, of_difference=True)}")


def _draw_ranks(ranks: Ranks, order: Sequence[str]) -> "Figure":
    """The critical-difference diagram: mean ranks on a line; a bar joins methods that are not distinguished.

    References:
        Demsar: Statistical comparisons of classifiers over multiple data sets, Journal of Machine Learning Research 7,
        2006, figure 1.
    """
    methods, number = [str(m) for m in ranks.mean.index], len(ranks.mean)
    half = math.ceil(number / 2)
    depth = 0.35 * len(ranks.groups)  # of the bars, in rows of names
    figure, (axes,) = new_panels(1, 1, _COLUMN, 0.75 + 0.2 * (half + depth))
    axes.set_xlim(1 - 0.55 * number, number + 0.55 * number)
    axes.set_ylim(half + depth + 0.6, -1.9)
    axes.axis("off")
    axes.plot([1, number], [0, 0], color="0.2", linewidth=0.8)
    for rank in range(1, number + 1):
        axes.plot([rank, rank], [-0.2, 0], color="0.2", linewidth=0.8)
        axes.text(rank, -0.35, str(rank), ha="center", va="bottom", fontsize=7)
    colours = colour_of(order)
    for position, method in enumerate(methods):
        is_left = position < half
        row = depth + 0.6 + (position if is_left else number - 1 - position)
        end = 0.8 if is_left else number + 0.2
        value = float(ranks.mean.iloc[position])
        axes.plot([value, value, end], [0, row, row], color=colours[method][0], linewidth=0.9)
        axes.text(end - 0.1 if is_left else end + 0.1, row, f"{_short(method)} {value:.2f}", va="center",
                  ha="right" if is_left else "left", fontsize=7)
    for row, group in enumerate(ranks.groups):
        ends = ranks.mean[list(group)]
        axes.plot([ends.min() - 0.05, ends.max() + 0.05], [0.3 + 0.35 * row] * 2, color="0.1", linewidth=2.2,
                  solid_capstyle="butt")
    if np.isfinite(ranks.critical_difference):
        end = min(1 + ranks.critical_difference, number + 0.5)
        axes.plot([1, end], [-1.25, -1.25], color="0.2", linewidth=0.8, marker="|", markersize=4)
        axes.text(1, -1.35, f"critical difference {ranks.critical_difference:.2f}, {ranks.blocks} blocks", va="bottom",
                  fontsize=7)
    return figure


def _line(axes: "Axes", x: NDArray[np.floating], mean: "pd.Series[float]", evidence: Evidence, colour: str, dashes: str,
          method: str) -> None:
    axes.plot(x, _shown(mean, evidence), dashes, color=colour, label=method)


def _shown(values: "pd.Series[float]", evidence: Evidence) -> NDArray[np.float64]:
    """The values in the unit of the figure: shares in percent, finite ones only, and gaps that are positive."""
    shown = values.to_numpy(np.float64) * _factor(evidence)
    is_shown = np.isfinite(shown) & ((shown > 0) | (evidence.score != GAP))
    return np.where(is_shown, shown, np.nan)


def _factor(evidence: Evidence) -> float:
    return 100.0 if _unit(evidence) else 1.0


def _unit(evidence: Evidence, *, of_difference: bool = False) -> str:
    if not format_value(1.0, evidence.score).endswith("%"):
        return ""
    return " (points)" if of_difference else " (%)"


def _label_score(axes: "Axes", evidence: Evidence) -> None:
    if evidence.score == GAP:
        axes.set_yscale("log")
        axes.set_ylabel("optimality gap")
    else:
        axes.set_ylabel(f"{evidence.split} {title_of(evidence.score)}{_unit(evidence)}")


def _short(name: str) -> str:
    return name if len(name) <= _MAX_TITLE else f"{name[:_MAX_TITLE - 1]}…"


def reference_of(evidence: Evidence, reference: str | None) -> str:
    """The method that gains are over: the named one, training alone, or the first method."""
    return reference or evidence.alone or evidence.methods[0]


def draw(kind: Kind, evidences: Mapping[str, Evidence], reference: str, band: Band, by: "Unit | None",
         ranks: Callable[[], Ranks]) -> "Figure":
    """The figure of a kind, see ``Study.plot``."""
    match kind:
        case "ranks":
            return _draw_ranks(ranks(), next(iter(evidences.values())).methods)
        case "parties" | "differences":
            panel = _draw_parties if kind == "parties" else partial(_draw_differences, reference=reference, by=by)
            height = 0.6 + 0.2 * max(len(evidence.methods) for evidence in evidences.values())
            return _grid(evidences, panel, height=height, legend=False)
        case "gains":
            return _grid(evidences, partial(_draw_gains, reference=reference))
        case "traffic":
            return _grid(evidences, _draw_traffic)
        case _:
            return _grid(evidences, partial(_draw_curves, band=band))
