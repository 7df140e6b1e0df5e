"""The result of a run in a folder: models, metrics and facts, without samples and states."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from typing_extensions import override

from resolvent.data.files.atomic_files import hidden_sibling, remove_folder, sync_to_disk, write_atomically
from resolvent.data.files.data_files import read_parquet
from resolvent.data.files.digests import check_files, file_digests, read_sealed, write_sealed
from resolvent.data.files.folder_lock import check_names
from resolvent.errors import InputError
from resolvent.math.tree import Vector
from resolvent.predict.fitted import Fitted
from resolvent.problem.models.model import Model
from resolvent.simulator.record.model_folder import NOTE_FILE, ModelFolder, SavedModels, write_model_folder
from resolvent.simulator.record.run_readings import RunReadings

if TYPE_CHECKING:
    import pandas as pd

RESULT_FILE = "result.json"
_VERSION = 1
_METRICS, _MODELS = "metrics.parquet", "models"
_BOUND = (_METRICS, f"{_MODELS}/{NOTE_FILE}")  # the note of the models has the digests of their files
_ADVICE = "save the result again"


def write_result(folder: Path, models: SavedModels, metrics: "pd.DataFrame", note: Mapping[str, Any]) -> None:
    """Write a result to a folder, completely or not at all.

    Args:
        folder: a folder that does not exist or is empty.
        note: its seed, the name of its score, whether it had data, and its facts.
    """
    check_names(folder)
    target = folder.expanduser().resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{folder} is in use: save the result to a folder that does not exist or is empty")
    work = hidden_sibling(target, "partial")
    remove_folder(work)
    work.mkdir(parents=True)
    try:
        write_model_folder(work / _MODELS, models)
        write_atomically(work / _METRICS, lambda path: metrics.to_parquet(path, index=False))
        write_sealed(work / RESULT_FILE, {
            "version": _VERSION, "name": models.method, "rounds": models.rounds, "digest": models.digest,
            **_plain(note), "files": file_digests(work, _BOUND)})
        sync_to_disk(work)
        if target.exists():
            target.rmdir()
        work.rename(target)
    finally:
        remove_folder(work)
    sync_to_disk(target.parent)


def _plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    return value.tolist() if isinstance(value, np.ndarray | np.generic | jax.Array) else value


class SavedResult(RunReadings):
    """A result that ``Result.save`` wrote.

    Attributes:
        name: name of the method.
        metrics: a table with the columns method, round, party (id, or none), split, metric and value.
        facts: seconds, bytes and numbers of the run, as those of ``Result``.
        rounds: number of rounds.
        seed: seed of all random numbers.
        digest: SHA-256 of the last state.

    Raises:
        InputError: the folder holds no result, or a file is damaged.
    """

    def __init__(self, folder: Path, model: Model | None = None) -> None:
        note = read_sealed(folder / RESULT_FILE, _ADVICE)
        if note.get("version") != _VERSION:
            raise InputError(f"{folder} was written by another version of resolvent: {_ADVICE}")
        check_files(folder, note["files"], _ADVICE)
        self._models, self._model, self._note = ModelFolder(folder / _MODELS), model, note
        self.name: str = note["name"]
        self.metrics: pd.DataFrame = read_parquet(folder / _METRICS)
        self.facts: dict[str, Any] = note["facts"]
        self.rounds: int = note["rounds"]
        self.seed: int = note["seed"]
        self.digest: str = note["digest"]

    @property
    @override
    def score_name(self) -> str:
        return str(self._note["score"])

    @property
    @override
    def parties(self) -> Sequence[str] | None:
        return self._models.parties if self._note["has_data"] else None

    @property
    @override
    def server_model(self) -> Vector | None:
        return self._models.parameters(None, self._model) if self._models.has_shared_model else None

    @override
    def personal_model(self, party: int | str) -> Vector:
        return self._models.parameters(party, self._model)

    @override
    def fitted(self, site: int | str | None = None) -> Fitted:
        return self._models.fitted(site, self._model)
