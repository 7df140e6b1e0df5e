"""Checkpoints of a run: when they are written, and that a resumed run is the uninterrupted one."""

import itertools

import pytest

import nightly
import resolvent as rv
from resolvent.simulator.checkpoint import checkpoints
from resolvent.simulator.record.stopwatch import Pace

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
    simulate(rv.fedavg_plus(SOLVER, sigma=0.5), rounds=4, checkpoint=folder)
    assert max(p.name for p in folder.iterdir()) == "000000004"
    return folder


@pytest.mark.when_changed
@pytest.mark.parametrize(("algorithm", "changes", "part"), [
    (rv.fedavg_plus(SOLVER, sigma=0.2), {}, "algorithm"),
    (rv.fedavg_plus(SOLVER, sigma=0.5), {"seed": 1}, "seed"),
    (rv.fedavg_plus(SOLVER, sigma=0.5), {"participation": rv.participation.Uniform(cohort=3)}, "participation"),
    (rv.fedavg_plus(SOLVER, sigma=0.5), {"evaluate_every": 3}, "evaluate_every"),
    (rv.fedavg_plus(SOLVER, sigma=0.5), {"clock": rv.VirtualClock(), "memory": "host"}, "memory, clock"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_another_run_is_refused_by_the_parts_that_differ(interrupted, algorithm, changes, part):
    with pytest.raises(rv.InputError, match=f"with another value of {part}:"):
        simulate(algorithm, checkpoint=interrupted, resume=True, **changes)


def test_resumed_run_is_the_uninterrupted_one(interrupted):
    complete = simulate(rv.fedavg_plus(SOLVER, sigma=0.5))
    resumed = simulate(rv.fedavg_plus(SOLVER, sigma=0.5), checkpoint=interrupted, resume=True)
    assert resumed.digest == complete.digest
    assert resumed.metrics.equals(complete.metrics)
    assert resumed.facts["bytes"] == complete.facts["bytes"]
    restored, every = resumed.facts["restored_cpu_seconds"], 2
    assert complete.facts["restored_cpu_seconds"] == 0 < restored <= every * sum(resumed.facts["cpu_per_round"])
    with pytest.raises(rv.InputError, match=r"is of round 6, beyond rounds=2"):
        simulate(rv.fedavg_plus(SOLVER, sigma=0.5), rounds=2, checkpoint=interrupted, resume=True)


@pytest.mark.when_changed
@nightly.parametrize("memory", ["host", "device"])
def test_division_into_calls_changes_no_bit(memory, tmp_path, monkeypatch):
    """Calls of 1, 2 and 3 rounds, each with a checkpoint, against calls up to the evaluations; then interrupted."""
    options = {"rounds": 10, "evaluate_every": 5, "memory": memory, "clock": rv.VirtualClock(),
               "diagnostics": ("model_change", "line", "steps")}
    algorithm, done = rv.scaffold(SOLVER), []

    def use_limits(*limits):
        limit = itertools.cycle(limits)
        monkeypatch.setattr(Pace, "add", lambda self, rounds, seconds: setattr(self, "rounds", next(limit)))

    use_limits(100)
    whole = simulate(algorithm, **options)
    use_limits(1, 2, 3)
    monkeypatch.setattr(checkpoints.CheckpointTimer, "is_due", lambda self: True)
    divided = simulate(algorithm, **options, checkpoint=tmp_path / "run",
                       progress=lambda rounds, total: done.append(rounds))
    assert len(done) > 5
    assert {0, 5, 10} < set(done)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [f"{rounds:09d}" for rounds in done[-2:]]

    def interrupt(rounds, total):
        if rounds > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(algorithm, **options, checkpoint=tmp_path / "other", progress=interrupt)
    newest = max((tmp_path / "other").glob("[0-9]*"))
    assert int(newest.name) % 5  # between evaluations
    state = newest / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="state.safetensors is damaged.* the run continues from the checkpoint before"):
        resumed = simulate(algorithm, **options, checkpoint=tmp_path / "other", resume=True)
    for result in (divided, resumed):
        assert result.digest == whole.digest
        assert result.metrics.equals(whole.metrics)
        assert result.facts["bytes"] == whole.facts["bytes"]
        assert len(result.facts["seconds_per_round"]) == 2


def test_calls_grow_to_half_a_second():
    pace, calls = Pace(), []
    while sum(calls) < 100_000:
        calls.append(pace.rounds)
        pace.add(pace.rounds, 0.004 + 1e-4 * pace.rounds)  # 4 ms for a call and 0.1 ms for a round
    seconds = 0.004 + 1e-4 * max(calls)
    assert calls[0] == 1
    assert 0.3 < seconds <= 0.51
    assert 0.004 * len(calls) < 0.05 * (1e-4 * sum(calls))


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
