"""Checkpoints of a run: when they are written, and that a resumed run is the uninterrupted one."""

import pytest

import resolvent as rv
from resolvent.simulate import checkpoints

DATA = rv.datasets.digits(parties=4, classes_per_party=4, outliers=1, seed=3)
SOLVER = rv.SGD(0.1, batch_size=16, epochs=2)
PARTICIPATION = rv.participation.Stragglers(rv.participation.Uniform(cohort=3), share=0.4)


def simulate(algorithm, **options):
    settings = {"rounds": 6, "evaluate_every": 2, "participation": PARTICIPATION, "progress": False} | options
    return rv.simulate(algorithm, rv.models.logistic(64, 10), DATA, **settings)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """The folder of a run with 4 of 6 rounds."""
    folder = tmp_path_factory.mktemp("checkpoints") / "run"
    simulate(rv.fedgeomed_plus(SOLVER), rounds=4, checkpoint=folder)
    assert [p.name for p in folder.iterdir()] == ["000000004"]
    return folder


@pytest.mark.parametrize(("algorithm", "changes", "part"), [
    (rv.fedgeomed_plus(SOLVER, sigma=0.2), {}, "algorithm"),
    (rv.fedgeomed_plus(SOLVER), {"seed": 1}, "seed"),
    (rv.fedgeomed_plus(SOLVER), {"participation": rv.participation.Uniform(cohort=3)}, "participation"),
    (rv.fedgeomed_plus(SOLVER), {"evaluate_every": 3}, "evaluate_every"),
    (rv.fedgeomed_plus(SOLVER), {"clock": rv.VirtualClock(), "memory": "host"}, "memory, clock"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_another_run_is_refused_by_the_parts_that_differ(interrupted, algorithm, changes, part):
    with pytest.raises(rv.InputError, match=f"with another value of {part}:"):
        simulate(algorithm, checkpoint=interrupted, resume=True, **changes)


def test_resumed_run_is_the_uninterrupted_one(interrupted):
    complete = simulate(rv.fedgeomed_plus(SOLVER))
    resumed = simulate(rv.fedgeomed_plus(SOLVER), checkpoint=interrupted, resume=True)
    assert resumed.digest == complete.digest
    assert resumed.metrics.equals(complete.metrics)
    assert resumed.facts["bytes"] == complete.facts["bytes"]
    with pytest.raises(rv.InputError, match=r"is of round 6, beyond rounds=2"):
        simulate(rv.fedgeomed_plus(SOLVER), rounds=2, checkpoint=interrupted, resume=True)


def test_damaged_state_is_reported(tmp_path):
    simulate(rv.fedavg(SOLVER), rounds=2, checkpoint=tmp_path)
    state = tmp_path / "000000002" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-40])
    with pytest.raises(rv.InputError, match=r"000000002.*cannot be read"):
        simulate(rv.fedavg(SOLVER), rounds=4, checkpoint=tmp_path, resume=True)


def test_writing_takes_at_most_5_percent_of_the_time(monkeypatch):
    """With a simulated clock: 3 seconds of work between questions, 2 seconds of writing."""
    seconds, written = [0.0], 0.0
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: seconds[0])
    timer = checkpoints.CheckpointTimer()
    for _ in range(1000):
        seconds[0] += 3
        if timer.is_due():
            with timer.writing():
                seconds[0] += 2
                written += 2
    assert 0.04 < written / seconds[0] <= 0.051
