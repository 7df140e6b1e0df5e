"""The files of a checkpoint: a folder per checkpoint, named after the number of rounds.

``state.safetensors`` has the state, ``metrics.parquet`` the metrics, and ``run.json`` the run's fingerprint, the
versions of resolvent and jax, and the facts.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxtyping import PyTree

from resolvent.errors import InputError
from resolvent.simulate.atomic_files import sync_to_disk
from resolvent.simulate.fingerprint import RunIdentity
from resolvent.simulate.tree_files import read_tree, write_tree

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Checkpoint"]

_STATE, _METRICS, _RUN = "state.safetensors", "metrics.parquet", "run.json"


class Checkpoint(NamedTuple):
    """A run after a chunk of rounds.

    Attributes:
        rounds: number of rounds so far.
        state: what the next round needs.
        metrics: all metrics so far.
        facts: seconds, bytes and other facts that JSON can hold.
    """

    rounds: int
    state: PyTree[Any]
    metrics: "pd.DataFrame"
    facts: Mapping[str, Any]

    def write(self, folder: Path, identity: RunIdentity) -> None:
        """Write the checkpoint, then remove the one before it: a kill at any moment leaves a complete one."""
        folder.mkdir(parents=True, exist_ok=True)
        target, partial = folder / f"{self.rounds:09d}", folder / f".{self.rounds:09d}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        self.metrics.to_parquet(partial / _METRICS, index=False)
        run = {"fingerprint": identity.fingerprint, "versions": identity.versions, "facts": dict(self.facts)}
        (partial / _RUN).write_text(json.dumps(run, indent=1), encoding="utf-8")
        write_tree(partial / _STATE, self.state)
        for path in (partial / _METRICS, partial / _RUN, partial):
            sync_to_disk(path)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        sync_to_disk(folder)  # the new name must be on the disk before the old checkpoint is removed
        for other in folder.iterdir():
            if other != target:
                shutil.rmtree(other)

    @classmethod
    def read(cls, folder: Path, like: PyTree[Any], identity: RunIdentity) -> "Checkpoint | None":
        """The newest complete checkpoint in a folder, or None if there is none.

        Args:
            folder: the folder.
            like: a tree with the structure, shapes and dtypes of the state.
            identity: of the run that continues. Warns if the versions differ.

        Raises:
            InputError: the checkpoint belongs to another run; the message says which parts differ. Or it is damaged.
        """
        import pandas as pd

        checkpoints = sorted(p for p in folder.glob("[0-9]*") if p.is_dir()) if folder.is_dir() else []
        if not checkpoints:
            return None
        path = checkpoints[-1]
        try:
            run = json.loads((path / _RUN).read_text(encoding="utf-8"))
            stored = RunIdentity(run["fingerprint"], run["versions"])
            facts = run["facts"]
            metrics = pd.read_parquet(path / _METRICS)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"the checkpoint {path} cannot be read: {error}. It may be damaged; remove it to start "
                             "afresh") from error
        # Before the state is read: the leaves of another run would be reported as a damaged file.
        identity.check(stored, path)
        state, _ = read_tree(path / _STATE, like)
        return cls(int(path.name), state, metrics, facts)
