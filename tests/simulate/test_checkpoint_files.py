"""Files that are complete or not there, and checkpoints that are damaged or belong to another run."""

import jax.numpy as jnp
import pandas as pd
import pytest

from resolvent.errors import InputError
from resolvent.simulate import checkpoint_files, tree_files
from resolvent.simulate.atomic_files import sync_to_disk, write_atomically
from resolvent.simulate.checkpoint_files import Checkpoint
from resolvent.simulate.fingerprint import RunIdentity

IDENTITY = RunIdentity({"seed": "0"}, {"resolvent": "0.1"})


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


@pytest.mark.parametrize("file", ["state.safetensors", "run.json", "metrics.parquet"])
@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_damaged_checkpoint_is_refused(file, damage, tmp_path):
    state = {"w": jnp.arange(3.0)}
    Checkpoint(4, state, pd.DataFrame({"value": [1.0]}), {"seconds": 1}).write(tmp_path, IDENTITY)
    assert Checkpoint.read(tmp_path, state, IDENTITY).rounds == 4
    path = tmp_path / "000000004" / file
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"000000004.* cannot be read"):
        Checkpoint.read(tmp_path, state, IDENTITY)


def test_checkpoint_of_another_run_is_refused(tmp_path):
    state = {"w": jnp.arange(3.0)}
    Checkpoint(4, state, pd.DataFrame({"value": [1.0]}), {}).write(tmp_path, IDENTITY)
    other = RunIdentity({"seed": "1"}, IDENTITY.versions)
    with pytest.raises(InputError, match=r"another run.*seed"):
        Checkpoint.read(tmp_path, {"other": jnp.arange(2.0)}, other)


def test_other_versions_are_reported_and_the_run_continues(tmp_path):
    state = {"w": jnp.arange(3.0)}
    Checkpoint(4, state, pd.DataFrame({"value": [1.0]}), {}).write(tmp_path, IDENTITY)
    newer = RunIdentity(IDENTITY.fingerprint, {"resolvent": "0.2"})
    with pytest.warns(UserWarning, match=r"resolvent 0\.1, now 0\.2"):
        assert Checkpoint.read(tmp_path, state, newer).rounds == 4


def test_last_checkpoint_is_removed_when_the_next_is_on_the_disk(tmp_path, monkeypatch):
    """First all of its files, then its name in the folder: after a power failure there is always a complete one."""
    synced = []

    def sync_and_note(path):
        sync_to_disk(path)
        synced.append((path.name, sorted(p.name for p in tmp_path.iterdir())))

    monkeypatch.setattr(checkpoint_files, "sync_to_disk", sync_and_note)
    monkeypatch.setattr(tree_files, "write_atomically", lambda path, write: (write(path), sync_and_note(path)))
    for rounds in (1, 2):
        Checkpoint(rounds, {"w": jnp.ones(2)}, pd.DataFrame({"value": [1.0]}), {}).write(tmp_path, IDENTITY)
    *files, partial, folder = synced[5:]
    assert {name for name, _ in files} == {"state.safetensors", "metrics.parquet", "run.json"}
    assert partial == (".000000002.partial", [".000000002.partial", "000000001"])
    assert folder == (tmp_path.name, ["000000001", "000000002"])
    assert [p.name for p in tmp_path.iterdir()] == ["000000002"]
