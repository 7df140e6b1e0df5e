"""The pictures of the results folder: limits of axes, and colours."""

import matplotlib.pyplot as plt
import pytest

from experiments.pictures import _add_legend, _draw_panel, _styles


def panel(log, *curves):
    methods = {f"method {i}": {"first": {"mean": curve[0]}, "rounds": list(range(len(curve))), "mean": curve,
                               "low": curve, "high": curve} for i, curve in enumerate(curves)}
    return {"methods": methods, "log": log, "axis": "loss"}


@pytest.mark.parametrize("log", [True, False])
def test_a_curve_that_diverges_does_not_compress_the_others(log):
    figure, axes = plt.subplots()
    _draw_panel(axes, panel(log, [3.0, 2.0, 0.5], [3.0, 1e20, None]), {"x": "rounds"}, None, {})
    low, high = axes.get_ylim()
    assert (0.25 < low <= 0.5 if log else low == 0.0)
    assert high == 3e3
    plt.close(figure)


def test_a_method_has_the_same_colour_in_all_panels():
    figure, (left, right) = plt.subplots(1, 2)
    all_three, single = panel(False, [1.0, 2.0], [1.0, 3.0], [1.0, 4.0]), panel(False, [1.0, 3.0])
    single["methods"] = {"method 1": single["methods"]["method 0"]}
    styles = _styles([single["methods"], all_three["methods"]])
    for axes, content in ((left, all_three), (right, single)):
        _draw_panel(axes, content, {"x": "rounds"}, None, styles)
    _add_legend(figure, columns=2)
    assert right.lines[0].get_color() == left.lines[1].get_color() != left.lines[0].get_color()
    assert len(figure.legends) == 1
    assert right.get_legend() is None
    plt.close(figure)


def test_a_line_of_a_sweep_has_the_colour_of_its_method():
    figure, (left, right) = plt.subplots(1, 2)
    curves = panel(False, [1.0, 2.0], [1.0, 3.0], [1.0, 4.0])
    sweep = {**panel(False), "methods": {
        f"eta {eta}": {"final": {"mean": eta, "std": 0.0}, "point": {"eta": eta, "method": "method 2"}}
        for eta in (0.1, 1.0)}}
    styles = _styles([curves["methods"]])
    _draw_panel(left, curves, {"x": "rounds"}, None, styles)
    _draw_panel(right, sweep, {"x": "eta", "lines": "method"}, None, styles)
    assert right.lines[0].get_color() == left.lines[2].get_color()
    plt.close(figure)
