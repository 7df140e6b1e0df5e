"""Numbers that an algorithm's party functions return are recorded by name, in metrics, callbacks, plots and traces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.algorithms import keys
from resolvent.algorithms.description import describe
from resolvent.algorithms.participation.rules import draw_cohort
from resolvent.simulator.record.plots import learning_curves, new_figure

SOLVER = rv.solvers.GD(0.1, steps=2)
TARGETS = np.array([[4.0, 0.0], [0.0, 1.0], [-2.0, 3.0], [1.0, -6.0]], np.float32)


def problem():
    return rv.problems.QuadraticProblem(jnp.stack([jnp.eye(2)] * 4), jnp.asarray(TARGETS))


class Reporting(rv.combinators.Combinator):
    """The inner algorithm, whose parties report their target's first entry, a flag and a vector."""

    def party(self, inner, state, message, oracle, key, effort, phase):
        after, reply, info = super().party(inner, state, message, oracle, key, effort, phase)
        model = info["model"]
        return after, reply, {**info, "first": model[0], "is_right": model[0] > 0, "pair": model, "loss": model[0]}

    def server(self, inner, state, replies, key, phase):
        after, info = super().server(inner, state, replies, key, phase)
        return after, {**info, "present": jnp.sum(replies.alive)}


def simulate(diagnostics, **settings):
    return rv.simulate(Reporting(rv.fedavg(SOLVER)), problem(), rounds=4, progress=False,
                       **{"evaluate_every": 2, "diagnostics": diagnostics} | settings)


@pytest.mark.when_changed
@nightly.parametrize("settings", [{}, {"scheduler": "lanes"}], ids=["sequential", "lanes"])
def test_a_named_number_is_recorded_for_each_party_and_round(settings):
    """The values are those of a loop over rounds, for the parties of the cohorts, in the order of the cohorts."""
    participation = rv.participation.Uniform(2, "uniform")
    events = []
    result = simulate(["first", "is_right", "update_norm"], participation=participation, seed=5,
                      on_evaluation=lambda event: events.append({*event.metrics["metric"]}), **settings)
    w, rows = np.zeros(2), []
    for t in range(4):
        cohort = np.asarray(draw_cohort(participation, jnp.ones(4, int), keys.root_key(5), jnp.array(t))[1].index)
        models = TARGETS[cohort] + 0.81 * (w - TARGETS[cohort])
        rows += [(t + 1, k, model[0], np.linalg.norm(model - w)) for k, model in zip(cohort, models, strict=True)]
        w = models.mean(axis=0)
    rounds, parties, first, norms = map(np.array, zip(*rows, strict=True))
    metrics = result.metrics.set_index("metric")
    for name, expected in (("first", first), ("is_right", first > 0), ("update_norm", norms)):
        of_name = metrics.loc[name]
        np.testing.assert_array_equal(of_name["round"], rounds)
        np.testing.assert_array_equal(of_name["party"], parties)
        np.testing.assert_allclose(of_name["value"].to_numpy(float), expected, rtol=1e-5)
    assert {*of_name["split"]} == {"train"}
    assert all({"first", "is_right", "update_norm", "present"} <= names for names in events)
    assert metrics.loc["present", "value"].tolist() == [2] * 4


@pytest.mark.when_changed
def test_own_numbers_are_drawn():
    _, axes = new_figure()
    result = simulate(["first"])
    learning_curves(axes, result.metrics, "first", "train")
    line, = axes.get_lines()
    expected = result.metrics.query("metric == 'first'").groupby("round")["value"].mean()
    np.testing.assert_allclose(line.get_ydata(), expected)


@pytest.mark.parametrize("name", ["frist", "pair", "loss", "model", "present"])
def test_a_name_that_does_not_exist_is_refused_with_those_that_do(name):
    """Vectors, names of other metrics and numbers of the server cannot be named."""
    with pytest.raises(rv.InputError) as refused:
        simulate([name])
    assert f"there is no diagnostic '{name}'" in str(refused.value)
    assert "numbers in the info of ModelAggregation's parties: ['first', 'is_right', 'update_norm']" in str(
        refused.value)
    assert "'model_change'" in str(refused.value)


@pytest.mark.when_changed
def test_a_number_that_is_not_named_changes_no_program():
    """Its computation is removed, and the states are the same with it."""
    assert simulate(()).digest == simulate(["first"]).digest
    assert "first" not in {*simulate(()).metrics["metric"]}


def test_resumed_runs_have_the_numbers(tmp_path):
    complete = simulate(["first"], checkpoint=tmp_path / "a")
    again = simulate(["first"], checkpoint=tmp_path / "a", resume=True)
    assert again.metrics.equals(complete.metrics)


def test_the_description_has_the_numbers_of_all_phases():
    assert describe(rv.feddane(SOLVER), problem()).info == ("steps",)
    assert describe(Reporting(rv.fedavg(SOLVER)), problem()).info == ("steps", "first", "is_right", "loss")
    with jax.enable_x64(False):
        assert "omega" in describe(rv.fedau(SOLVER), problem()).info
