"""Pictures of trials: the score against each parameter."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.comparisons.tuning.space import Choices, Range, Space
from resolvent.comparisons.tuning.trials import Trial
from resolvent.simulator.record.plots import COLOURS, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOG_RATIO = 20  # the axis is logarithmic if the largest value is at least this many times the smallest


def trial_figure(space: Space, trials: Sequence[Trial], best: Trial, title: str) -> "Figure":
    """A panel per parameter: complete trials as full circles, stopped ones as empty circles, the best one as a star.

    Args:
        space: the values of each parameter.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(style):
        figure = Figure(figsize=(3.4 * max(1, len(space)), 2.8), layout="constrained")
        panels: Any = figure.subplots(1, max(1, len(space)), sharey=True, squeeze=False)[0]
        for axes, name in zip(panels, space, strict=False):
            ticks, positions = _axis(axes, space[name], [t.point[name] for t in trials])
            scores = np.array([t.reading.score for t in trials])
            complete = np.array([t.is_complete for t in trials])
            axes.plot(positions[complete], scores[complete], "o", color=COLOURS[0], markersize=5)
            axes.plot(positions[~complete], scores[~complete], "o", color=COLOURS[0], markersize=5, fillstyle="none")
            at = positions[trials.index(best)]
            axes.plot([at], [best.reading.score], "*", color=COLOURS[4], markersize=13)
            axes.set_xlabel(name)
            if ticks:
                axes.set_xticks(range(len(ticks)), ticks)
        panels[0].set_ylabel(title)
    return figure


def _axis(axes: "Axes", values: Choices | Range, tried: list[Any]) -> tuple[list[str], "np.ndarray[Any, Any]"]:
    """Names of ticks, empty for numbers, and the positions of the tried values; sets a logarithmic axis."""
    numbers = [v for v in (values.values if isinstance(values, Choices) else (values.low, values.high))
               if isinstance(v, int | float) and not isinstance(v, bool)]
    if isinstance(values, Choices) and len(numbers) < len(values.values):
        return list(map(str, values.values)), np.array([values.values.index(v) for v in tried], float)
    low, high = min(numbers), max(numbers)
    if low > 0 and high / low >= _LOG_RATIO:
        axes.set_xscale("log")
        margin = (high / low) ** 0.05
        axes.set_xlim(low / margin, high * margin)
    elif high > low:
        axes.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    return [], np.array(tried, float)
