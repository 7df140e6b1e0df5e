"""Host memory: bit-identical to a run on the device, whatever is gathered, written, killed or damaged."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.math import tree
from resolvent.problem.learning import LearningProblem
from resolvent.simulator import placement
from resolvent.simulator.engine.rounds import compiled_programs
from resolvent.simulator.storage import host_storage
from resolvent.simulator.storage.host_states import RowFile, compute_first_rows
from resolvent.simulator.task import Task
from resolvent.xla.compiled_programs import free_programs

PARTIES, FEATURES = 37, 5
MODEL = rv.models.logistic(FEATURES, 3)
SOLVER = rv.SGD(0.1, batch_size=4, epochs=2)
PARTICIPATION = rv.participation.Stragglers(rv.participation.Uniform(cohort=6), share=0.4)


def parties(count=PARTIES, seed=0):
    """Parties of different sizes, whose inputs are pixels."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        n = int(rng.integers(4, 23))
        yield rng.integers(0, 256, (n, FEATURES), np.uint8), rng.integers(0, 3, n)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The same parties in memory and on the disk."""
    folder = tmp_path_factory.mktemp("packed") / "data"
    data = rv.write_packed(folder, parties(), classes=["0", "1", "2"], scale=1 / 255, seed=3)
    xs, ys = zip(*parties(), strict=True)
    scaled = [x.astype(np.float32) * np.float32(1 / 255) for x in xs]
    return rv.FederatedData.from_arrays(scaled, ys, classes=["0", "1", "2"], seed=3), data


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of two rounds, so that a run has many."""
    monkeypatch.setattr(host_storage, "_CHUNK_BYTES", 4500)


def run(algorithm, data, **options):
    settings = {"rounds": 12, "evaluate_every": 5, "participation": PARTICIPATION, "progress": False} | options
    return rv.simulate(algorithm, MODEL, data, **settings)


def test_packed_data_equal_those_of_from_arrays(packed):
    in_memory, on_disk = packed
    np.testing.assert_array_equal(LearningProblem(MODEL, on_disk).x, LearningProblem(MODEL, in_memory).x)
    assert len(on_disk) == PARTIES
    assert on_disk.parties[4] == "party 4" in on_disk.parties
    assert (on_disk.index("party 7"), "party 07" in on_disk.parties) == (7, False)
    for split in ("train", "validation", "test"):
        np.testing.assert_array_equal(in_memory.sizes(split), on_disk.sizes(split))
        for k in range(PARTIES):
            for a, b in zip(in_memory.party(k, split), on_disk.party(k, split), strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)


ALGORITHMS = {
    "FedAvg": rv.fedavg(SOLVER),
    "Fed+": rv.fedgeomed_plus(SOLVER, sigma=0.5),
    "SCAFFOLD": rv.scaffold(SOLVER),
    "model interpolation": rv.combinators.HeldOutInterpolation(rv.fedprox(SOLVER), SOLVER),
}


@pytest.mark.when_changed
@nightly.parametrize("name", ["SCAFFOLD", "Fed+", "FedAvg", "model interpolation"])
def test_host_memory_changes_no_bit(name, packed, small_chunks):
    in_memory, on_disk = packed
    measured = {"diagnostics": ("model_change", "line", "dissimilarity"), "clock": rv.VirtualClock()}
    options = measured if name == "Fed+" else {}
    device = run(ALGORITHMS[name], in_memory, memory="device", **options)
    host = run(ALGORITHMS[name], on_disk, memory="host", **options)
    assert host.storage.capacity == 2
    assert device.metrics.equals(host.metrics)
    assert device.facts["bytes"] == host.facts["bytes"]
    for a, b in zip(jax.tree.leaves((device.state.server, device.state.parties, device.personal_models)),
                    jax.tree.leaves((host.state.server, host.state.parties[np.arange(PARTIES)],
                                     host.personal_models)), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(*(jax.tree.leaves(r.personal_model("party 5")) for r in (device, host)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.nightly
def test_evaluated_parties_are_the_same_in_both_memories(packed, small_chunks):
    in_memory, on_disk = packed
    options = {"evaluate_parties": 7, "diagnostics": ("line",), "rounds": 5}
    device, host = (run(ALGORITHMS["FedAvg"], data, memory=memory, **options)
                    for data, memory in ((in_memory, "device"), (on_disk, "host")))
    assert device.metrics.equals(host.metrics)
    all_parties = run(ALGORITHMS["FedAvg"], in_memory, rounds=5).scores()
    assert len(host.scores().columns) == host.facts["evaluated_parties"] == 7
    assert host.scores().equals(all_parties[host.scores().columns])


@pytest.mark.nightly
def test_chunks_seeds_and_number_of_parties_do_not_compile_again(tmp_path, small_chunks):
    def programs():
        return compiled_programs(), compute_first_rows._cache_size()

    def packed_parties(count):
        return rv.write_packed(tmp_path / f"{count}", ((np.full((9, FEATURES), k / count), np.arange(9) % 3)
                                                       for k in range(count)), classes=["0", "1", "2"])
    few, many = packed_parties(20), packed_parties(400)
    free_programs()  # none is freed meanwhile because models of earlier tests are gone
    run(ALGORITHMS["SCAFFOLD"], few, memory="host")
    before = programs()
    run(ALGORITHMS["SCAFFOLD"], few, memory="host", seed=1)
    run(ALGORITHMS["SCAFFOLD"], many, memory="host", evaluate_parties=20)
    assert programs() == before


CHECKPOINTED = {"rounds": 12, "evaluate_every": 3, "memory": "host"}


class Torn(Exception):
    pass


def raise_torn():
    raise Torn


def torn_run(patch, data, checkpoint, stop):
    """A run that stops in the middle of writing a row."""
    write_at, written = RowFile._write_at, []

    def torn(self, offset, record):
        written.append(offset)
        if len(written) == 44:
            os.pwrite(self._file, record.view(np.uint8).data[:30], offset)
            stop()
        write_at(self, offset, record)

    patch.setattr(host_storage, "_CHUNK_BYTES", 4500)
    patch.setattr(RowFile, "_write_at", torn)
    run(ALGORITHMS["SCAFFOLD"], data, checkpoint=checkpoint, **CHECKPOINTED)


def killed_run(folder, checkpoint):
    """Kills its process with SIGKILL."""
    torn_run(pytest.MonkeyPatch(), rv.open_packed(folder), checkpoint, lambda: os.kill(os.getpid(), signal.SIGKILL))


def run_until_torn(data, checkpoint):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Torn):
        torn_run(patch, data, checkpoint, raise_torn)


def run_until_killed(data, checkpoint):
    folder = Path(data.x._path).parent
    command = (f"import sys; sys.path.append('..'); import test_host_storage; "
               f"test_host_storage.killed_run({str(folder)!r}, {str(checkpoint)!r})")
    process = subprocess.run([sys.executable, "-c", command], cwd=Path(__file__).parent, capture_output=True,
                             text=True, timeout=600)
    assert process.returncode == -signal.SIGKILL, process.stderr


@pytest.mark.when_changed
@pytest.mark.parametrize("interrupted", [
    run_until_torn, pytest.param(run_until_killed, marks=[pytest.mark.kill, pytest.mark.nightly])],
    ids=["error", "kill"])
def test_a_run_that_stops_within_a_row_resumes_to_the_same_bits(interrupted, packed, tmp_path, small_chunks):
    in_memory, on_disk = packed
    interrupted(on_disk, tmp_path / "run")
    checkpoints = sorted((tmp_path / "run").glob("[0-9]*"))
    assert 0 < int(checkpoints[-1].name) < 12
    resumed = run(ALGORITHMS["SCAFFOLD"], on_disk, checkpoint=tmp_path / "run", resume=True, **CHECKPOINTED)
    straight = run(ALGORITHMS["SCAFFOLD"], in_memory, **CHECKPOINTED)
    assert resumed.digest == straight.digest
    assert resumed.metrics.equals(straight.metrics)
    (rows,) = (tmp_path / "run.parties").iterdir()

    def again():
        return run(ALGORITHMS["SCAFFOLD"], on_disk, checkpoint=tmp_path / "run", resume=True, **CHECKPOINTED)

    assert again().digest == straight.digest  # nothing is left to run
    content = rows.read_bytes()
    rows.write_bytes(content[:-1])
    with pytest.raises(rv.InputError, match=rf"{rows.name} has \d+ bytes"):
        again()
    rows.write_bytes(bytes(len(content)))
    with pytest.raises(rv.InputError, match=r"state of party \d+"):
        again()
    with pytest.raises(rv.InputError, match="another value of data"):
        run(ALGORITHMS["SCAFFOLD"], in_memory, checkpoint=tmp_path / "run", resume=True, **CHECKPOINTED)


def test_rows_of_the_last_two_checkpoints_survive_later_writes(tmp_path):
    """Random writes, checkpoints, kills, and resumptions from either of the last two checkpoints."""
    rng = np.random.default_rng(0)
    like = {"a": jax.ShapeDtypeStruct((2,), np.float32), "b": jax.ShapeDtypeStruct((), np.int32)}
    file = RowFile(tmp_path / "rows", like, 12)
    rows = {"a": np.zeros((12, 2), np.float32), "b": np.zeros(12, np.int32)}
    saved = [(tree.rows(rows, slice(None)), file.sync())] * 2  # of the last two checkpoints
    last_position = 0
    for _ in range(300):
        ids = np.flatnonzero(rng.random(12) < 0.3).astype(np.int32)
        new = {"a": rng.normal(size=(len(ids), 2)).astype(np.float32), "b": rng.integers(0, 9, len(ids), np.int32)}
        for name, leaf in rows.items():
            leaf[ids] = new[name]
        file.write(ids, new)
        if rng.random() < 0.3:
            saved = [saved[1], ({name: leaf.copy() for name, leaf in rows.items()}, file.sync())]
            if rng.random() < 0.8:  # otherwise the run is killed before the checkpoint is confirmed
                file.confirm_checkpoint()
            else:
                file.restore(saved[1][1])
            last_position = max(last_position, int(file.table.max()))
        elif rng.random() < 0.1:
            is_newest = rng.random() < 0.7  # otherwise the newest is damaged
            saved = saved if is_newest else [saved[0], saved[0]]
            file.restore(saved[1][1])
            rows = {name: leaf.copy() for name, leaf in saved[1][0].items()}
        for expected, tables in saved:
            other = RowFile(tmp_path / "rows", like, 12)
            other.restore(tables)
            stored, is_stored = other.read(np.flatnonzero(tables[0] >= 0).astype(np.int32))
            assert is_stored.all()
            for name, leaf in stored.items():
                np.testing.assert_array_equal(leaf, expected[name][tables[0] >= 0])
    assert last_position < 36  # positions are reused: at most one present row and one of each checkpoint per party


def test_incomplete_packed_data_are_refused(packed, tmp_path):
    def failing():
        yield from parties(3)
        raise RuntimeError("the source broke off")
    with pytest.raises(RuntimeError, match="broke off"):
        rv.write_packed(tmp_path / "half", failing(), classes=["0", "1", "2"])
    with pytest.raises(rv.InputError, match=r"half holds no packed data: packed.json, which is written last, is miss"):
        rv.open_packed(tmp_path / "half")
    assert len(rv.write_packed(tmp_path / "half", parties(3), classes=["0", "1", "2"])) == 3
    with pytest.raises(rv.InputError, match="half is used already"):
        rv.write_packed(tmp_path / "half", parties(3), classes=["0", "1", "2"])
    rv.write_packed(tmp_path / "cut", parties(3), classes=["0", "1", "2"], names=["a", "b", "c"])
    with (tmp_path / "cut" / "x.npy").open("r+b") as file:
        file.truncate(200)
    with pytest.raises(rv.InputError, match=r"x.npy has 200 bytes, and its \d+ rows need \d+: it is damaged"):
        rv.open_packed(tmp_path / "cut")
    for names, count in ((["a", "b"], 3), (["a", "b", "c", "d"], 3)):
        with pytest.raises(rv.InputError, match="names: give at least one party, and a name to each"):
            rv.write_packed(tmp_path / f"{len(names)}", parties(count), classes=["0", "1", "2"], names=names)
    mixed = [(np.zeros((2, 3), np.uint8), [0, 1]), (np.zeros((2, 3)), [0, 1])]
    with pytest.raises(rv.InputError, match="party 'party 1' has numbers of type float64, the first party's are uint8"):
        rv.write_packed(tmp_path / "mixed", mixed, classes=["0", "1"])


@pytest.mark.parametrize("name", ["x.npy", "y.npy", "lengths.npy", "checksums.npy", "packed.json"])
def test_packed_data_with_a_flipped_bit_are_refused(name, tmp_path):
    path = tmp_path / "flipped" / name
    rv.write_packed(path.parent, parties(3), classes=["0", "1", "2"])
    whole = path.read_bytes()
    for position in range(len(whole) // 2, len(whole), 7):  # after the header
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1:])
        with pytest.raises(rv.InputError, match=rf"flipped/{name}"):
            [rv.open_packed(path.parent).party(k, s) for k in range(3) for s in ("train", "validation", "test")]
    path.write_bytes(whole[:32] + bytes(len(whole) - 32))
    with pytest.raises(rv.InputError, match=rf"flipped/{name}"):
        rv.open_packed(path.parent)


def test_memory_is_chosen_by_size_and_impossible_choices_are_refused(packed, monkeypatch):
    in_memory, _ = packed
    task = Task(MODEL, in_memory, None)
    party = task.prepare(ALGORITHMS["Fed+"], "Fed+").description.party
    assert placement.fits_device(task.gatherer, party)
    monkeypatch.setattr(placement.os, "sysconf", lambda name: 100)  # a machine of 10 kB
    assert not placement.fits_device(task.gatherer, party)
    with pytest.raises(rv.InputError, match=r"memory='disk'.* must be 'auto', 'device' or 'host'"):
        run(ALGORITHMS["Fed+"], in_memory, memory="disk")
    with pytest.raises(rv.InputError, match="evaluate_parties=38 must lie in 1 to 37"):
        run(ALGORITHMS["Fed+"], in_memory, evaluate_parties=38)
    with pytest.raises(rv.InputError, match="pooled samples"):
        run(rv.pooled(SOLVER), in_memory, memory="host")
    with pytest.raises(rv.InputError, match="memory='host' gathers from data"):
        rv.simulate(ALGORITHMS["Fed+"], rv.problems.LearningProblem(MODEL, in_memory), rounds=1, memory="host")
