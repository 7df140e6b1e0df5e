"""What a notebook shows: short texts, tables, pictures, and progress."""

import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import resolvent as rv
from resolvent.simulator.record.progress import progress_bars

DATA = rv.FederatedData.from_arrays([np.random.default_rng(k).normal(size=(20, 3)) for k in range(25)],
                                    [np.arange(20) % 2] * 25, name="visits & more")
MODEL = rv.models.logistic(3, 2)


@pytest.fixture(scope="module")
def result():
    return rv.simulate(rv.fedavg(rv.SGD(0.1)), MODEL, DATA, rounds=1, name="FedAvg", progress=False)


@pytest.mark.when_changed
def test_texts_are_short(result):
    start = {"weight": np.zeros((50, 1000)), "bias": np.zeros(50)}
    algorithm = rv.combinators.WarmStart(rv.fedprox(rv.SGD(0.1)), start)
    assert repr(DATA) == "FederatedData('visits & more', 25 parties, 300 training samples, inputs [3], 2 classes)"
    assert repr(result).startswith("Result('FedAvg', 1 rounds, mean test accuracy 0.")
    assert "f64[50,1000](numpy)" in repr(algorithm)
    assert max(len(repr(x)) for x in (DATA, result, algorithm)) <= 310


@pytest.mark.when_changed
def test_tables_of_data_results_and_algorithms(result):
    shown = DATA._repr_html_()
    assert "visits &amp; more" in shown
    assert "<td>party 0</td><td>12</td><td>4</td><td>4</td>" in shown
    assert "party 20" not in shown
    assert "of 25 parties" in shown
    shown = result._repr_html_()
    assert "data:image/png;base64," in shown
    assert f"<td>party 0</td><td>{result.scores()[0].iloc[0]:.3f}</td>" in shown
    shown = rv.scaffold(rv.SGD(0.1))._repr_html_()
    for fact in ("a party stores (models)</th><td style='text-align:left'>1<",
                 "a party receives in a round (models)</th><td style='text-align:left'>2<"):
        assert fact in shown


def test_a_plot_is_a_picture(result):
    assert result.plot()._repr_png_().startswith(b"\x89PNG")


@pytest.fixture
def shown(monkeypatch):
    """What a notebook shows, in order."""
    shown = []

    class Handle:
        def update(self, text):
            shown.append(text)

    display = SimpleNamespace(HTML=str, display=lambda text, display_id: shown.append(text) or Handle())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1)))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


@pytest.mark.when_changed
def test_simulate_in_a_notebook_shows_the_curve_of_the_score(shown):
    problem = rv.problems.least_squares(parties=3, samples=20, features=2)
    result = rv.simulate(rv.fedavg(rv.solvers.GD(0.01)), problem, rounds=4, evaluate_every=1)
    curves = [text for text in shown if "<polyline" in text]
    assert [text.split("points='")[1].split("'")[0].count(",") for text in curves] == [2, 3, 4, 5]
    last = result.metrics[(result.metrics["metric"] == result.score_name) & (result.metrics["round"] == 4)]
    assert f" {last['value'].mean():.4g} (between" in curves[-1]
    assert shown[-1] == ""
    rv.simulate(rv.fedavg(rv.solvers.GD(0.01)), problem, rounds=4, evaluate_every=1, progress=False)
    assert shown[-1] == ""


def test_progress_in_a_notebook_replaces_one_output(shown, capsys, monkeypatch):
    with progress_bars("rounds", transient=True) as show:
        for done, now in enumerate((0.0, 2.0, 3.0)):  # the start is part of the first round
            monkeypatch.setattr("time.monotonic", partial(float, now))
            show("a < b", done, 4)
    assert "a &lt; b <progress value='2' max='4'></progress> 2/4 rounds about 2 s left" in shown[2]
    assert shown[3] == ""
    assert capsys.readouterr().err == ""
