"""Settings beyond what a run can use: batches beyond the largest party, rounds between evaluations, memory."""

import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.errors import InputError
from resolvent.simulator import placement

DATA = rv.datasets.fedprox_synthetic(parties=3)
MODEL = rv.models.logistic(60, 10)


def run(algorithm, model=MODEL, **settings):
    return rv.simulate(algorithm, model, DATA, rounds=2, progress=False, **settings)


@nightly.parametrize("method", [rv.fedavg, rv.pooled], per_commit=0)
def test_huge_batches_are_the_whole_party(method):
    largest = int(DATA.sizes().sum())
    huge, whole = (run(method(rv.SGD(0.1, batch_size=size))).server_model for size in (10**9, largest))
    assert np.allclose(huge["weight"], whole["weight"], atol=1e-6)


@pytest.mark.when_changed
def test_huge_evaluation_interval_evaluates_at_the_end():
    metrics = run(rv.local(rv.SGD(0.1)), evaluate_every=10**9).metrics
    assert sorted(set(metrics[metrics["metric"] == "loss"]["round"])) == [0, 2]


@pytest.mark.parametrize("memory", ["auto", "device", "host"])
def test_model_that_cannot_fit_is_refused_with_its_size(memory):
    model = rv.models.mlp(60, 10, width=200_000, depth=3)
    with pytest.raises(InputError, match=r"at least .* TB of memory.*the model takes 320 GB.*memory='host'"):
        run(rv.ditto(rv.SGD(0.1)), model, memory=memory)


@pytest.mark.when_changed
def test_states_that_cannot_fit_are_counted(monkeypatch):
    monkeypatch.setattr(placement, "_memory_limit", lambda: 20_000)
    run(rv.fedavg(rv.SGD(0.1)), memory="device")  # 2 models on the server, a working copy and 3 replies: 14,640 bytes
    with pytest.raises(InputError, match=r"the states of the 3 parties 7\.32 kB"):
        run(rv.ditto(rv.SGD(0.1)), memory="device")
