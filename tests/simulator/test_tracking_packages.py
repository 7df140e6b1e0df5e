"""MLflow, TensorBoard and Weights & Biases read back what the callbacks wrote: the means of every evaluation.

The packages are installed by the nightly workflow; ``test_callbacks.py`` tests the calls without them.
"""

import json
import struct

import numpy as np
import pytest

import resolvent as rv

pytestmark = pytest.mark.nightly
DATA = rv.FederatedData.from_arrays(
    [np.random.default_rng(k).normal(size=(20, 3)) for k in range(3)],
    [np.random.default_rng(k + 9).integers(0, 2, 20) for k in range(3)], seed=0)


def run(callback, **settings):
    return rv.simulate(rv.fedavg(rv.SGD(0.1, batch_size=5)), rv.models.logistic(3, 2), DATA, evaluate_every=2,
                       on_evaluation=callback, progress=False, name="FedAvg", **settings)


def test_mlflow_has_a_run_with_the_history_of_every_metric(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    address = f"sqlite:///{tmp_path}/mlflow.db"
    callback = rv.callbacks.MLflow("hospitals", address)
    result = run(callback, rounds=6)
    client = mlflow.MlflowClient(address)
    experiment = client.get_experiment_by_name("hospitals")
    (of_run,) = client.search_runs([experiment.experiment_id])
    assert (of_run.info.run_name, of_run.info.status) == ("FedAvg-seed-0", "FINISHED")
    assert of_run.data.params == {"method": "FedAvg", "seed": "0", "rounds": "6"}
    history = client.get_metric_history(of_run.info.run_id, "test/accuracy")
    assert {point.step: point.value for point in history} == result.scores().mean(axis=1).to_dict()
    run(callback, rounds=2)
    assert len(client.search_runs([experiment.experiment_id])) == 2


def test_tensorboard_reads_a_resumed_run_once(tmp_path):
    pytest.importorskip("tensorboardX")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    callback = rv.callbacks.TensorBoard(str(tmp_path / "curves"))
    run(callback, rounds=4, checkpoint=tmp_path / "c")
    result = run(callback, rounds=6, checkpoint=tmp_path / "c", resume=True)
    accumulator = reader.EventAccumulator(str(tmp_path / "curves" / "FedAvg-seed-0")).Reload()
    scalars = accumulator.Scalars("test/accuracy")
    assert [event.step for event in scalars] == [0, 2, 4, 6]
    np.testing.assert_allclose([event.value for event in scalars], result.scores().mean(axis=1), rtol=1e-6)


def test_weights_and_biases_writes_a_run_that_can_be_synchronised_later(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    result = run(rv.callbacks.WandB("hospitals", mode="offline"), rounds=6)
    (path,) = tmp_path.rglob("*.wandb")
    records = list(records_of(path.read_bytes()))
    (start,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (start.project, start.display_name) == ("hospitals", "FedAvg-seed-0")
    history = [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
               for record in records if record.WhichOneof("record_type") == "history"]
    curve = {int(row["_step"]): row["test/accuracy"] for row in history}
    assert curve == pytest.approx(result.scores().mean(axis=1).to_dict(), rel=1e-6)


def records_of(content):
    """The records of a file of an offline run: a log in blocks of 32 kB as of LevelDB, after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    position, parts = 7, b""
    while position + 7 <= len(content):
        if (left := 2**15 - position % 2**15) < 7:
            position += left
            continue
        size, kind = struct.unpack("<HB", content[position + 4:position + 7])
        parts += content[position + 7:position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            yield Record.FromString(parts)
            parts = b""
