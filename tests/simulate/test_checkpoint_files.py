"""Files that are complete or not there, and checkpoints that are damaged or belong to another run."""

import jax.numpy as jnp
import pandas as pd
import pytest

from resolvent.errors import InputError
from resolvent.simulate.atomic_files import write_atomically
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
