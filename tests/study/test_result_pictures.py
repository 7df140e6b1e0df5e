"""The pictures of the results folder: limits of axes."""

import matplotlib.pyplot as plt
import pytest

from resolvent.study.reproductions.pictures import _draw_panel


def panel(log, *curves):
    methods = {f"method {i}": {"first": {"mean": curve[0]}, "rounds": list(range(len(curve))), "mean": curve,
                               "low": curve, "high": curve} for i, curve in enumerate(curves)}
    return {"methods": methods, "log": log, "axis": "loss"}


@pytest.mark.parametrize("log", [True, False])
def test_a_curve_that_diverges_does_not_compress_the_others(log):
    figure, axes = plt.subplots()
    _draw_panel(axes, panel(log, [3.0, 2.0, 0.5], [3.0, 1e20, None]), {"x": "rounds"}, None)
    low, high = axes.get_ylim()
    assert (0.25 < low <= 0.5 if log else low == 0.0)
    assert high == 3e3
    plt.close(figure)
