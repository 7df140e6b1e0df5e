"""From curves to the numbers that rules compare: where a curve ends, and what is read from it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from experiments.curves import Curve, Panels
from experiments.schema import Read, Stop


def read_panels(panels: Panels, read: Read) -> Panels:
    """The panels with curves that end where ``read`` says, and with the numbers that it says.

    A number is computed where a rule asks for it: not every curve has the axis of ``read``.
    """
    number = partial(_number, read)
    return {title: {label: replace(_end(curve, read, panels, title, label), number=number)
                    for label, curve in curves.items()}
            for title, curves in panels.items() if read.stopped is None or title in read.stopped.losses}


def _end(curve: Curve, read: Read, panels: Panels, title: str, label: str) -> Curve:
    last = np.inf if read.round is None else read.round
    if read.stopped is not None:
        last = min(last, _stop(panels[read.stopped.losses[title]][label], read.stopped))
    stays = curve.rounds <= last
    if stays.all():
        return curve
    axes: Mapping[str, np.ndarray] = {name: axis[stays] for name, axis in curve.axes.items()}
    return replace(curve, rounds=curve.rounds[stays], values=curve.values[stays], axes=axes)


def _stop(loss: Curve, stop: Stop) -> float:
    """The first round in which the loss says that the run has diverged or converged; infinite if there is none."""
    has_diverged = [t >= stop.within and not loss.at(t) - loss.at(t - stop.within) <= stop.by for t in loss.rounds]
    with np.errstate(invalid="ignore"):  # after a divergence both values are infinite
        has_converged = np.abs(np.diff(loss.values, prepend=np.inf)) < stop.change
    stops = loss.rounds[np.array(has_diverged) | has_converged]
    return float(stops[0]) if len(stops) else np.inf


def _number(read: Read, curve: Curve) -> float:
    values, first = curve.values, float(curve.values[0])
    if read.late is not None:
        return float(np.mean(_after(curve, read.late)))
    if read.fluctuation is not None:
        return float(np.std(np.diff(_after(curve, read.fluctuation))))
    if read.settled is not None:
        return curve.rounds_to(max(read.negligible * first, read.settled * float(values[-1])), read.by)
    return curve.rounds_to(read.reached * first, read.by) if read.reached is not None else float(values[-1])


def _after(curve: Curve, share: float) -> np.ndarray:
    return np.asarray(curve.values[curve.rounds >= share * curve.rounds[-1]])
