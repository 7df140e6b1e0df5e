"""What a run calls at its evaluations: events, stopping, the best models, writers, and calls of a resumed run."""

import sys
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest

import resolvent as rv
from resolvent.simulator.record import events

DATA = rv.FederatedData.from_arrays(
    [np.random.default_rng(k).normal(size=(20, 3)) for k in range(3)],
    [np.random.default_rng(k + 9).integers(0, 2, 20) for k in range(3)], seed=0)
MODEL = rv.models.logistic(3, 2)


def run(on_evaluation=None, rounds=6, every=2, **settings):
    return rv.simulate(rv.fedavg(rv.SGD(0.1, batch_size=5)), MODEL, DATA, rounds=rounds, evaluate_every=every,
                       on_evaluation=on_evaluation, progress=False, **settings)


@pytest.fixture(scope="module")
def plain():
    return run()


@pytest.mark.when_changed
def test_events_have_the_metrics_and_the_models_of_their_rounds(plain):
    """Copies stay valid when the run continues, and callbacks change no number."""
    recorded = []

    def record(event):
        recorded.append((event, event.result()))

    result = run(record)
    assert [event.round for event, _ in recorded] == [2, 4, 6]
    assert result.digest == plain.digest
    pd.testing.assert_frame_equal(result.metrics, plain.metrics)
    for event, snapshot in recorded:
        shorter = run(rounds=event.round)
        np.testing.assert_array_equal(snapshot.server_model["weight"], shorter.server_model["weight"])
        np.testing.assert_array_equal(snapshot.personal_model(1)["weight"], shorter.personal_model(1)["weight"])
        pd.testing.assert_frame_equal(event.metrics, shorter.metrics)
        assert event.means()["test/accuracy"] == pytest.approx(plain.scores().loc[event.round].mean())


@pytest.mark.when_changed
def test_a_callback_that_edits_its_event_edits_neither_the_run_nor_another_callback(plain, tmp_path):
    def edit(event):
        result = event.result()
        event.metrics["value"] = -1.0
        event.metrics.drop(event.metrics.index[1:], inplace=True)
        event.directions.clear()
        result.metrics["value"] = -2.0
        result.facts["seconds"].clear()
        result.facts["seconds_per_round"].clear()
        model = jax.tree.map(np.asarray, (result.server_model, result.state.server))
        for array in (result.data.x, *jax.tree.leaves(model)):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0

    tables = []
    result = run([edit, lambda event: tables.append(event.metrics)], checkpoint=tmp_path / "run")
    pd.testing.assert_frame_equal(result.metrics, plain.metrics)
    pd.testing.assert_frame_equal(tables[-1], plain.metrics)
    pd.testing.assert_frame_equal(run(checkpoint=tmp_path / "run", resume=True).metrics, plain.metrics)
    assert len(result.facts["seconds_per_round"]) == 3


@pytest.mark.nightly
def test_models_of_a_run_in_host_memory_are_copies():
    snapshots = []
    run(lambda event: snapshots.append(event.result()), memory="host")
    expected = run(rounds=2)
    for leaf in ("weight", "bias"):
        np.testing.assert_allclose(snapshots[0].server_model[leaf], expected.server_model[leaf], rtol=1e-6)
        np.testing.assert_allclose(snapshots[0].personal_models[leaf], expected.personal_models[leaf], rtol=1e-6)


def test_a_function_stops_the_run(plain):
    result = run(lambda event: event.stop("enough") if event.round == 4 else None)
    assert result.rounds == 4
    assert result.facts["stopped"] == "enough"
    assert "stopped" not in plain.facts
    pd.testing.assert_frame_equal(result.metrics, plain.metrics[plain.metrics["round"] <= 4])


@pytest.mark.parametrize(("scores", "patience", "expected"), [
    ([0.5, 0.6, 0.7, 0.8], 1, None), ([0.5, 0.6, 0.6], 1, 2), ([0.5, 0.6, 0.6, 0.7], 2, None),
    ([0.5, 0.4, 0.45, 0.49], 3, 3)])
def test_early_stopping_counts_evaluations_without_improvement(scores, patience, expected):
    callback = rv.callbacks.EarlyStopping(patience=patience)
    stopped = next((i for i in range(len(scores)) if stops(callback, scores[:i + 1])), None)
    assert stopped == expected
    as_loss = rv.callbacks.EarlyStopping(patience=patience, metric="loss")
    assert next((i for i in range(len(scores)) if stops(as_loss, [-s for s in scores[:i + 1]], "loss")),
                None) == expected


def stops(callback, values, metric="accuracy"):
    event = event_with(values, metric)
    callback(event)
    return event._stop_reason is not None


def event_with(values, metric="accuracy", name="FedAvg"):
    table = pd.DataFrame([{"method": name, "round": i, "party": k, "split": "validation", "metric": m,
                           "value": value if m == metric else 0.0}
                          for i, value in enumerate(values) for k in range(2) for m in {"loss", metric}])
    return events.EvaluationEvent(name, 0, len(values) - 1, 10, "accuracy", {"accuracy": True, "loss": False}, False,
                                  table, lambda: pytest.fail("no models are needed"))


def test_a_metric_that_does_not_exist_is_refused_with_the_ones_that_do():
    with pytest.raises(rv.InputError, match=r"no metric 'acuracy' of the split 'validation'; did you mean 'accuracy'\? "
                                            "There are accuracy, .*loss"):
        run(rv.callbacks.EarlyStopping(metric="acuracy"))
    with pytest.raises(rv.InputError, match=r"on_evaluation=3\) must be a function"):
        run(3)
    with pytest.raises(rv.InputError, match=r"EarlyStopping\(patience=0\)"):
        rv.callbacks.EarlyStopping(patience=0)


def test_the_best_models_are_in_a_folder(tmp_path):
    result = run(rv.callbacks.KeepBest(str(tmp_path), metric="loss", split="train"), name="a/b")
    means = result.scores("train", "loss").mean(axis=1)
    best = rv.load(next(tmp_path.glob("a_b-*-seed-0")))
    assert best.rounds == means.iloc[1:].idxmin()
    np.testing.assert_array_equal(best.server_model["weight"], run(rounds=best.rounds).server_model["weight"])


class Interrupted(Exception):
    pass


def test_a_resumed_run_calls_nothing_twice(tmp_path, plain):
    """Interrupted right after a call: the call was the last before the checkpoint that the run continues from."""
    calls = []

    def interrupt(event):
        calls.append(event.round)
        if event.round == 4 and not event.is_resumed:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(interrupt, checkpoint=tmp_path / "c")
    result = run(interrupt, checkpoint=tmp_path / "c", resume=True)
    assert calls == [2, 4, 6]
    assert result.digest == plain.digest


def test_a_stopped_run_stays_stopped_when_it_is_resumed(tmp_path):
    calls = []

    def stop(event):
        calls.append(event.round)
        event.stop("enough")

    first = run(stop, checkpoint=tmp_path / "c")
    with pytest.warns(UserWarning, match=r"this run was stopped after round 2 of \d+ \(enough\), so that it is not"):
        again = run(stop, checkpoint=tmp_path / "c", resume=True)
    assert calls == [2]
    assert (again.rounds, again.facts["stopped"], again.digest) == (2, "enough", first.digest)


def test_csv_has_a_row_per_evaluation(tmp_path, plain):
    run(rv.callbacks.CSV(str(tmp_path / "curves")), name="FedAvg")
    table = pd.read_csv(tmp_path / "curves" / "FedAvg-seed-0.csv", index_col="round")
    assert [*table.index] == [0, 2, 4, 6]
    np.testing.assert_allclose(table["test/accuracy"], plain.scores().mean(axis=1))


class Recorder:
    """Records the calls of a tracking library."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return SimpleNamespace(info=SimpleNamespace(run_id="r1")) if name == "create_run" else None
        return call

    def named(self, name):
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


def test_weights_and_biases_gets_the_means_of_every_round_once(monkeypatch):
    target, inits = Recorder(), []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **settings: inits.append(settings) or target))
    result = run(rv.callbacks.WandB("hospitals", mode="offline"), name="FedAvg")
    assert inits == [{"project": "hospitals", "name": "FedAvg-seed-0", "mode": "offline", "reinit": "create_new",
                      "config": {"method": "FedAvg", "seed": 0, "rounds": 6}}]
    logged = {kwargs["step"]: args[0] for args, kwargs in target.named("log")}
    assert [*logged] == [0, 2, 4, 6]
    np.testing.assert_allclose([means["test/accuracy"] for means in logged.values()], result.scores().mean(axis=1))
    assert len(target.named("finish")) == 1


def test_mlflow_gets_the_means_of_every_round_once(monkeypatch):
    client = Recorder()
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=lambda uri: client))
    result = run(rv.callbacks.MLflow("hospitals"), name="FedAvg")
    logged = {kwargs["step"]: args[2] for args, kwargs in client.named("log_metric") if args[1] == "test/accuracy"}
    assert [*logged] == [0, 2, 4, 6]
    np.testing.assert_allclose([*logged.values()], result.scores().mean(axis=1))
    assert client.named("set_terminated") == [(("r1",), {})]


@pytest.mark.parametrize(("make", "module"), [
    (lambda: rv.callbacks.WandB("p"), "wandb"), (lambda: rv.callbacks.MLflow("p"), "mlflow"),
    (lambda: rv.callbacks.TensorBoard("f"), "tensorboardX")])
def test_a_writer_without_its_library_says_what_to_install(make, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(rv.InputError, match=f"{module} is not installed: pip install"):
        make()
