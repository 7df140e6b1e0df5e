"""A folder with the trained models of one method and the encoding of their inputs, which needs no other file.

``parties.safetensors`` has the personal models (leaves [N, ...], row k is party k's), ``server.safetensors`` the shared
model, ``encoding.json`` how rows become inputs, ``training_rows.json`` a summary of the training rows,
``model.safetensors`` the fixed arrays of the model, and ``tree.json`` the names, shapes and dtypes of the parameters,
the settings of the model, and the digests of the other files.
``calibration.json`` is written later, by ``resolvent model calibrate``: each site's calibration and threshold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from resolvent.data.encoded_rows import Encoding
from resolvent.data.files.digests import (
    DamagedFileError,
    check_files,
    file_digest,
    file_digests,
    read_sealed,
    write_sealed,
)
from resolvent.data.files.folder_lock import locked
from resolvent.data.files.plain_values import read_plain
from resolvent.errors import InputError, nearest, quote, shorten
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.predict.fitted import Fitted
from resolvent.problem.models.descriptions import describe, model_from_description
from resolvent.problem.models.model import Model
from resolvent.simulator.storage.tree_files import named_leaves, write_tree
from resolvent.tables.drift import TrainingRows
from resolvent.tables.encoding_files import read_encoding, write_encoding

NOTE_FILE, CALIBRATION_FILE = "tree.json", "calibration.json"
_VERSION = 1
_PARTIES, _SERVER, _ENCODING, _MODEL = "parties.safetensors", "server.safetensors", "encoding.json", "model.safetensors"
_TRAINING = "training_rows.json"
_ADVICE = "run the experiment again, or save the result again"
_NO_ENCODING = ("the saved models have no encoding of their inputs: they were trained on a problem without samples, so "
                "that there are no rows to predict for")


class SavedModels(NamedTuple):
    """The models of one method.

    Attributes:
        personal: the personal models, leaves [N, ...].
        shared: the shared model, or None.
        model: the predictor, or None for a problem without samples.
        encoding: the encoding of its inputs, or None for a problem without samples.
        digest: SHA-256 of the last state of their run; empty if it is not known.
        training: a summary of the training rows, or None.
    """

    method: str
    rounds: int
    parties: Sequence[str]
    personal: Vector
    shared: Vector | None
    model: Model | None
    encoding: Encoding | None
    digest: str = ""
    training: TrainingRows | None = None

    def fitted(self, party: int | None) -> Fitted | None:
        """The model of a party, or the shared model; None if there is none."""
        if self.model is None or self.encoding is None:
            raise InputError(_NO_ENCODING)
        if party is None and self.shared is None:
            return None
        params = self.shared if party is None else tree.rows(self.personal, party)
        return Fitted(self.model, params, self.encoding, self.method, None if party is None else self.parties[party],
                      self.rounds, training=self.training)


def write_model_folder(folder: Path, saved: SavedModels) -> None:
    """Write the models of a method; ``tree.json`` is written last."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {_PARTIES: "the parties' personal models: row k of every tensor belongs to parties[k]"}
    write_tree(folder / _PARTIES, saved.personal)
    if saved.shared is not None:
        files[_SERVER] = "the shared model"
        write_tree(folder / _SERVER, saved.shared)
    if saved.encoding is not None:
        files[_ENCODING] = "how rows become inputs of the model"
        write_encoding(folder / _ENCODING, saved.encoding)
    if saved.training is not None:
        files[_TRAINING] = "how many training rows are in each bin or level of each column"
        write_sealed(folder / _TRAINING, saved.training.plain())
    description = None if saved.model is None else describe(saved.model)
    if description is not None and description[1]:
        files[_MODEL] = "the fixed arrays of the model"
        write_tree(folder / _MODEL, description[1])
    leaves = {name: {"shape": list(leaf.shape[1:]), "dtype": str(leaf.dtype)}
              for name, leaf in named_leaves(saved.personal).items()}
    write_sealed(folder / NOTE_FILE, {
        "version": _VERSION, "method": saved.method, "round": saved.rounds, "run": saved.digest,
        "parties": list(saved.parties), "leaves": leaves,
        "model": None if description is None else description[0], "files": files,
        "digests": file_digests(folder, files)})


class ModelFolder:
    """A folder that ``write_model_folder`` wrote. Models are read when they are needed.

    Attributes:
        digest: SHA-256 of the last state of the run of the models; empty if it is not known.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._note = folder, read_sealed(folder / NOTE_FILE, _ADVICE)
        if self._note.get("version") != _VERSION:
            raise InputError(f"{folder} was written by another version of resolvent: {_ADVICE}")
        self.method: str = self._note["method"]
        self.digest: str = self._note.get("run", "")
        self.parties: tuple[str, ...] = tuple(self._note["parties"])

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder

    @property
    def has_shared_model(self) -> bool:
        """Whether the method has a shared model."""
        return _SERVER in self._note["files"]

    @property
    def has_description(self) -> bool:
        """Whether the model can be built without the program of the user."""
        return self._note["model"] is not None

    @property
    def encoding(self) -> Encoding:
        """The encoding of the inputs."""
        if _ENCODING not in self._note["files"]:
            raise InputError(_NO_ENCODING)
        check_files(self._folder, {_ENCODING: self._note["digests"][_ENCODING]}, _ADVICE)
        return read_encoding(self._folder / _ENCODING)

    @property
    def training(self) -> TrainingRows | None:
        """The summary of the training rows; None if there is none, or its file was deleted, which is allowed."""
        if _TRAINING not in self._note["files"] or not (self._folder / _TRAINING).exists():
            return None
        check_files(self._folder, {_TRAINING: self._note["digests"][_TRAINING]}, _ADVICE)
        return read_plain(TrainingRows, read_sealed(self._folder / _TRAINING, _ADVICE), _TRAINING)

    def index(self, party: int | str) -> int:
        """The id of a party, from its name or its id."""
        if isinstance(party, str) and party in self.parties:
            return self.parties.index(party)
        if isinstance(party, int) and 0 <= party < len(self.parties):
            return party
        raise InputError(f"there is no site {quote(party)}; there are {shorten(', '.join(self.parties))}"
                         f"{nearest(str(party), self.parties)}")

    def _personal_leaves(self, party: int | str) -> dict[str, NDArray[Any]]:
        """The leaves of a party's personal model by name; only its rows are read."""
        k = self.index(party)
        return self._read(_PARTIES, lambda file, name: file.get_slice(name)[k])

    def _shared_leaves(self) -> dict[str, NDArray[Any]]:
        if not self.has_shared_model:
            raise InputError(f"{self.method} has no shared model: name a site, one of "
                             f"{shorten(', '.join(self.parties))}")
        return self._read(_SERVER, lambda file, name: file.get_tensor(name))

    def fitted(self, site: int | str | None, model: Model | None = None) -> Fitted:
        """The model of a site, or the shared model, with the encoding of its inputs, its calibration and its threshold.

        Args:
            site: the name or the id of a party; None: the shared model.
            model: the predictor, if it is not one of the library's.
        """
        encoding, predictor = self.encoding, self._predictor(model)
        assert predictor is not None
        name = None if site is None else self.parties[self.index(site)]
        return self.adjust(Fitted(predictor, self.parameters(site, predictor), encoding, self.method, name,
                                  self._note["round"], training=self.training))

    def adjust(self, fitted: Fitted) -> Fitted:
        """A model with the calibration and the threshold that are stored here for its site."""
        record = self.read_later_file(CALIBRATION_FILE)
        content = record["shared"] if fitted.site is None else record["sites"].get(fitted.site)
        if content is None:
            return fitted
        from resolvent.predict.calibration import Calibration
        from resolvent.predict.threshold import Threshold

        threshold = content["threshold"]
        return replace(fitted, calibration=read_plain(Calibration, content["calibration"], CALIBRATION_FILE),
                       threshold=threshold and read_plain(Threshold, threshold["threshold"], CALIBRATION_FILE))

    def read_later_file(self, name: str) -> dict[str, Any]:
        """The content of a file about these models that was written after them.

        It has ``sites``, the record of each site by name, and ``shared``, that of the shared model or None.
        """
        path = self._folder / name
        if not path.exists():
            return {"sites": {}, "shared": None}
        content = read_sealed(path, f"remove {path}, or make it again")
        if content["models"] != self.models_digest:
            raise DamagedFileError(f"{path} belongs to other models than those in its folder: remove it, or make it "
                                   "again")
        return content

    def write_later_file(self, name: str, records: Mapping[str | None, Mapping[str, Any]]) -> Path:
        """Write the records of these sites into a file that ``read_later_file`` reads; those of other sites stay.

        Args:
            records: name of a site -> its record; None: that of the shared model.

        Returns:
            The path of the file.
        """
        with locked(self._folder / name, "run the command again"):
            content = self.read_later_file(name)
            sites = content["sites"] | {site: record for site, record in records.items() if site is not None}
            write_sealed(self._folder / name, {
                "version": _VERSION, "method": self.method, "models": self.models_digest, "sites": sites,
                "shared": records.get(None, content["shared"])})
        return self._folder / name

    @property
    def models_digest(self) -> str:
        """SHA-256 of ``tree.json``, which has the digests of the models."""
        return file_digest(self._folder / NOTE_FILE)

    def parameters(self, site: int | str | None, model: Model | None = None) -> Vector:
        """The parameters of a site's model, or of the shared model; arguments and errors are those of ``fitted``."""
        leaves = self._shared_leaves() if site is None else self._personal_leaves(site)
        predictor = self._predictor(model)
        with jax.enable_x64(any(leaf.dtype == np.float64 for leaf in leaves.values())):
            if predictor is None:
                return leaves.get("value", leaves)
            return _as_parameters(predictor, leaves)

    def _predictor(self, model: Model | None) -> Model | None:
        """The predictor; None for a problem without samples."""
        settings = self._note["model"]
        if model is not None or _ENCODING not in self._note["files"]:
            return model
        if settings is None:
            raise InputError("the saved model is not one of the library's: give it as the argument model, built as for "
                             "the run")
        arrays = self._read(_MODEL, lambda file, name: file.get_tensor(name)) if _MODEL in self._note["files"] else {}
        return model_from_description(settings, arrays)

    def _read(self, name: str, read: Any) -> dict[str, NDArray[Any]]:
        path = self._folder / name
        check_files(self._folder, {name: self._note["digests"][name]}, _ADVICE)
        try:
            with safe_open(path, framework="numpy") as file:
                return {leaf: np.asarray(read(file, leaf)) for leaf in file.keys()}  # noqa: SIM118 - not a dict
        except (SafetensorError, FileNotFoundError) as error:
            raise DamagedFileError(f"{path} cannot be read, it is damaged: {shorten(error)}") from error


def _as_parameters(model: Model, leaves: dict[str, NDArray[Any]]) -> Vector:
    like = jax.eval_shape(model.init, jax.random.key(0))
    names = [name or "value" for name, _ in tree.named_leaves(like)]
    shapes = [leaf.shape for _, leaf in tree.named_leaves(like)]
    if sorted(names) != sorted(leaves) or any(leaves[name].shape != shape
                                              for name, shape in zip(names, shapes, strict=True)):
        raise InputError(f"the model has the parameters {_described(dict(zip(names, shapes, strict=True)))}, and the "
                         f"saved ones are {_described({name: leaf.shape for name, leaf in leaves.items()})}: give the "
                         "model of the run")
    return jax.tree.unflatten(jax.tree.structure(like), [jax.numpy.asarray(leaves[name]) for name in names])


def _described(shapes: dict[str, tuple[int, ...]]) -> str:
    return shorten(", ".join(f"{name} {list(shape)}" for name, shape in shapes.items()))
