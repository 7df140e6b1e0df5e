"""Files that are complete or not there, and checkpoints that are damaged or belong to another run."""

import errno
import json
import signal

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from safetensors import SafetensorError

from resolvent.data.files import atomic_files
from resolvent.data.files.atomic_files import write_atomically
from resolvent.errors import InputError
from resolvent.simulator.checkpoint import checkpoints
from resolvent.simulator.checkpoint.checkpoints import Checkpoint
from resolvent.simulator.checkpoint.identity import RunIdentity
from resolvent.simulator.storage import tree_files
from signals import heard_signals

IDENTITY = RunIdentity({"seed": "0"}, {"resolvent": "0.1"}, "")


def test_written_file_is_complete_or_not_there(tmp_path):
    path = tmp_path / "a.txt"

    def fail(partial):
        partial.write_text("half")
        raise ValueError("the writer failed")

    with pytest.raises(ValueError, match="the writer failed"):
        write_atomically(path, fail)
    assert list(tmp_path.iterdir()) == []

    write_atomically(path, lambda p: p.write_text("old"))
    with pytest.raises(ValueError, match="the writer failed"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    write_atomically(path, lambda p: p.write_text("new"))
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def written(folder, *all_rounds):
    """A folder with checkpoints of these numbers of rounds, whose states differ."""
    for previous, rounds in zip((None, *all_rounds), all_rounds, strict=False):
        Checkpoint(rounds, {"w": jnp.arange(3.0) + rounds}, pd.DataFrame({"value": [float(rounds)]}),
                   {"seconds": rounds}).write(folder, IDENTITY, previous)


def damaged_copies(content):
    """The content with a flipped bit at 40 positions, in half, and with a byte more."""
    rng = np.random.default_rng(0)
    for position in rng.choice(len(content), 40, replace=False):
        yield (content[:position] + bytes([content[position] ^ 1 << int(rng.integers(8))]) + content[position + 1:])
    yield content[: len(content) // 2]
    yield content + b"\n"
    yield b""


def test_scalars_and_transposed_arrays_are_read_as_they_were_written(tmp_path):
    written = {"scalar": np.float32(2), "transposed": np.arange(6.0).reshape(2, 3).T}
    tree_files.write_tree(tmp_path / "tree", written)
    read = tree_files.read_tree(tmp_path / "tree", written)
    assert read["scalar"].shape == ()
    np.testing.assert_array_equal(read["transposed"], written["transposed"])


@pytest.mark.parametrize("file", ["state.safetensors", "run.json", "metrics.parquet"])
def test_damaged_checkpoint_is_replaced_by_the_one_before_or_refused(file, tmp_path):
    state = {"w": jnp.zeros(3)}
    written(tmp_path / "two", 2, 4)
    written(tmp_path / "single", 4)
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == ["000000002", "000000004"]
    newest, single = tmp_path / "two" / "000000004" / file, tmp_path / "single" / "000000004" / file
    content = newest.read_bytes()
    for damaged in (*damaged_copies(content), None):
        for path in (newest, single):
            path.unlink(missing_ok=True)
            if damaged is not None:
                path.write_bytes(damaged)
        if damaged is not None and file == "run.json" and json.loads(content) == _json_or_none(damaged):
            continue  # white space
        with pytest.warns(UserWarning, match=rf"{file}.* the run continues from the checkpoint before it, of round 2"):
            checkpoint = Checkpoint.read(tmp_path / "two", state, IDENTITY)
        assert (checkpoint.rounds, checkpoint.state["w"][0], checkpoint.metrics["value"][0]) == (2, 2, 2)
        with pytest.raises(InputError, match=rf"{file}.*start afresh"):
            Checkpoint.read(tmp_path / "single", state, IDENTITY)


def _json_or_none(content):
    try:
        return json.loads(content)
    except ValueError:
        return None


def test_two_checkpoints_of_this_run_are_on_the_disk(tmp_path):
    written(tmp_path, 1, 3, 7)
    (tmp_path / ".000000009.partial").mkdir()  # of a run that was killed
    Checkpoint(5, {"w": jnp.ones(3)}, pd.DataFrame({"value": [1.0]}), {}).write(tmp_path, IDENTITY, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000000003", "000000005"]  # 7 was damaged


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    written(tmp_path, 1)

    def fail(tensors, path):
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(tree_files, "save_file", fail)
    with pytest.raises(OSError, match=r"No space left on device: .*state.safetensors") as caught:
        written(tmp_path, 2)
    assert caught.value.errno == errno.ENOSPC
    assert [p.name for p in tmp_path.iterdir()] == ["000000001"]


def test_interruption_waits_until_the_checkpoint_is_complete(tmp_path, monkeypatch):
    write_tree = tree_files.write_tree

    def interrupt_and_write(path, tree):
        signal.raise_signal(signal.SIGINT)
        write_tree(path, tree)

    monkeypatch.setattr(checkpoints, "write_tree", interrupt_and_write)
    with heard_signals(), pytest.raises(KeyboardInterrupt):
        written(tmp_path, 1)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["000000001"]
    assert Checkpoint.read(tmp_path, {"w": jnp.zeros(3)}, IDENTITY).rounds == 1


def test_checkpoint_of_another_run_is_refused(tmp_path):
    state = {"w": jnp.arange(3.0)}
    Checkpoint(4, state, pd.DataFrame({"value": [1.0]}), {}).write(tmp_path, IDENTITY)
    other = IDENTITY._replace(fingerprint={"seed": "1"})
    with pytest.raises(InputError, match=r"another run.*seed"):
        Checkpoint.read(tmp_path, {"other": jnp.arange(2.0)}, other)


def test_other_versions_are_reported_and_the_run_continues(tmp_path):
    state = {"w": jnp.arange(3.0)}
    Checkpoint(4, state, pd.DataFrame({"value": [1.0]}), {}).write(tmp_path, IDENTITY)
    newer = IDENTITY._replace(versions={"resolvent": "0.2"})
    with pytest.warns(UserWarning, match=r"resolvent 0\.1, now 0\.2"):
        assert Checkpoint.read(tmp_path, state, newer).rounds == 4


def test_old_checkpoint_is_removed_when_the_next_is_on_the_disk(tmp_path, monkeypatch):
    """First all of its files, then its name in the folder: after a power failure there is always a complete one."""
    written(tmp_path, 1, 2)
    events = []
    monkeypatch.setattr(checkpoints, "sync_to_disk", lambda path: events.append(path.name))
    monkeypatch.setattr(atomic_files, "sync_to_disk", lambda path: events.append(path.name))
    monkeypatch.setattr(atomic_files.shutil, "rmtree", lambda path, ignore_errors: events.append(f"remove {path.name}"))
    Checkpoint(3, {"w": jnp.ones(3)}, pd.DataFrame({"value": [1.0]}), {}).write(tmp_path, IDENTITY, 2)
    in_folder, end = events.index(tmp_path.name), events.index("remove .000000001.removed", 1)
    assert {"metrics.parquet", ".state.safetensors.partial", ".run.json.partial", ".000000003.partial"} <= set(
        events[:in_folder])
    assert in_folder < end
