"""Federated data on disk: written and read party by party, so that they may exceed the memory.

A folder holds ``x.npy`` and ``y.npy``, the parties' samples one after the other (a party's training samples, then its
validation samples, then its test samples), ``lengths.npy`` [3, N] with the number of each, ``checksums.npy`` [2, 3 N]
with the CRC-32 of these parts of both files, and ``packed.json``. Inputs or labels of several arrays have one file for
each, ``x-0.npy``, ``x-1.npy``, ..., and a row of ``checksums.npy`` for each. The manifest has the names of the arrays,
the digests of the two tables and of itself. It is written last: a folder without it is incomplete.
"""

import contextlib
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import jax
import numpy as np
from typing_extensions import override

from resolvent.data.federated import SPLITS, FederatedData, Split
from resolvent.data.files.array_files import ArrayWriter, Blocks, PackedArray
from resolvent.data.files.digests import check_files, file_digests, read_sealed, write_sealed
from resolvent.data.files.folder_lock import check_names
from resolvent.data.sample_trees import check_samples, label_arrays, sample_of
from resolvent.data.samples import Task, split_order, split_sizes
from resolvent.errors import InputError, shorten
from resolvent.math.tree import count_rows
from resolvent.math.tree import rows as rows_of_tree

_FORMAT = 3
_MANIFEST, _LENGTHS, _CHECKSUMS = "packed.json", "lengths.npy", "checksums.npy"
_FILES_OF_INTERRUPTED_WRITE = re.compile(rf"[xy](-\d+)?\.npy|{_LENGTHS}|{_CHECKSUMS}|\.{_MANIFEST}\.partial")
_ADVICE = "write the data again"


class NumberedNames(Sequence[str]):
    """The names ``party 0``, ``party 1``, ... of N parties, made when they are indexed."""

    def __init__(self, count: int) -> None:
        self._numbers = range(count)

    @override
    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, k: int) -> str: ...
    @overload
    def __getitem__(self, k: slice) -> tuple[str, ...]: ...
    @override
    def __getitem__(self, k: int | slice) -> str | tuple[str, ...]:
        return tuple(f"party {i}" for i in self._numbers[k]) if isinstance(k, slice) else f"party {self._numbers[k]}"

    @override
    def index(self, name: Any, start: int = 0, stop: int | None = None) -> int:
        digits = str(name).removeprefix("party ")
        k = int(digits) if digits.isascii() and digits.isdigit() else -1
        if k not in self._numbers[slice(start, stop)] or name != self[k]:
            raise ValueError(f"{name!r} is not among the names")
        return k

    @override
    def __contains__(self, name: object) -> bool:
        with contextlib.suppress(ValueError):
            return self.index(name) >= 0
        return False


def write_packed(
    folder: Path | str,
    parties: Iterable[tuple[Any, Any]],
    *,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    validation: float = 0.2,
    test: float = 0.2,
    seed: int = 0,
    scale: float = 1.0,
    name: str = "data",
    features: Sequence[str] = (),
    notes: Sequence[str] = (),
    vocabulary: Sequence[str] = (),
) -> FederatedData:
    """Write parties to a folder one by one, and open it.

    A party's samples are split as ``FederatedData.from_arrays`` splits them: both have the same content. If writing is
    interrupted, `open_packed` refuses the folder, and write_packed may write to it again.

    Args:
        folder: a folder that does not exist, is empty, or has the files of an interrupted write.
        parties: (inputs, labels) of each party, of one shape and type: arrays [n_k, ...], or dicts of them; None for
            labels if there are none. It may be an iterator; only one party is in memory at a time.
        classes: the labels in the order of their class numbers; None: the labels are real numbers, or structured.
        names: the parties' names; default ``party 0``, ``party 1``, ...
        validation: share of each party's samples for validation.
        test: share of each party's samples for testing.
        seed: seed of the split.
        scale: factor of stored inputs that are one array when they are read: with ``scale=1/255``, pixels 0 to 255 stay
            uint8 on disk.
        name: the name of the data set, for reports.
        features: names of the inputs' columns.
        notes: facts for the reader of a report.
        vocabulary: the words or characters that the tokens 0, 1, ... stand for, if inputs are sequences of tokens.

    Raises:
        InputError: a party's samples cannot be used, or the folder cannot.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rv.write_packed(folder, ((np.full((5, 2), k), np.full(5, k)) for k in range(3)), test=0.2)
        FederatedData('data', 3 parties, 9 training samples, inputs [2], regression)
    """
    path = Path(folder)
    check_names(path)
    if path.exists() and (not path.is_dir() or not all(
            _FILES_OF_INTERRUPTED_WRITE.fullmatch(p.name) for p in path.iterdir())):
        raise InputError(f"{path} is used already: give write_packed an empty folder, or one that does not exist")
    path.mkdir(parents=True, exist_ok=True)
    lengths: list[tuple[int, int, int]] = []
    with _Writer(path) as writer:
        # One party more than there are names is enough to see that there are too many.
        for k, (x, y) in enumerate(parties if names is None else islice(parties, len(names) + 1)):
            party = f"party {k}" if names is None or k >= len(names) else names[k]
            inputs = sample_of(x, "write_packed: inputs", party)
            labels = None if y is None else sample_of(y, "write_packed: labels", party)
            writer.begin(inputs, labels, scale)
            check_samples(party, inputs, labels, *writer.first)
            numbers, task, class_names = _numbers(labels, classes, party)
            sizes = split_sizes(count_rows(inputs), validation, test)
            order = split_order(count_rows(inputs), k, seed)
            writer.append(rows_of_tree((inputs, numbers), order), party, sizes)
            lengths.append(sizes)
    _check_names(len(lengths), names)
    np.save(path / _LENGTHS, np.array(lengths, np.int32).T)
    np.save(path / _CHECKSUMS, np.array([array.checksums for array in writer.arrays], np.uint32))
    manifest = {"format": _FORMAT, "name": name, "task": task, "parties": len(lengths), "classes": class_names,
                "features": list(features), "notes": list(notes), "vocabulary": list(vocabulary), "scale": scale,
                "names": None if names is None else list(names), "x": writer.x, "y": writer.y,
                "limits": [array.limits for array in writer.arrays],
                "digests": [array.digest for array in writer.arrays],
                "files": file_digests(path, (_LENGTHS, _CHECKSUMS))}
    write_sealed(path / _MANIFEST, manifest)
    return open_packed(path)


class _Writer(contextlib.ExitStack):
    """Writes the arrays of inputs and labels, each to its file.

    Attributes:
        arrays: a writer for each array, in the order of the tree (inputs, labels).
        x: the structure of the inputs, as JSON can hold it, with the name of its file for each array.
        y: the structure of the labels in the same way; None if there are none.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.arrays: list[ArrayWriter] = []
        self.x: Any = None
        self.y: Any = None
        self.first: tuple[Any, Any] = (None, None)

    def begin(self, x: Any, y: Any, scale: float) -> None:
        """Open the files for a first party's inputs and labels; nothing for further parties."""
        if self.arrays:
            return
        if scale != 1 and not isinstance(x, np.ndarray):
            raise InputError(f"write_packed(scale={scale}) is for inputs that are one array: leave it out, and scale "
                             "in the model")
        self.first = x, y
        self.x, self.y = _files_of(x, "x"), _files_of(y, "y")
        self.arrays = [self.enter_context(ArrayWriter(self._folder / file))
                       for file in jax.tree.leaves((self.x, self.y))]

    def append(self, samples: tuple[Any, Any], party: str, sizes: Sequence[int]) -> None:
        for array, leaf in zip(self.arrays, jax.tree.leaves(samples), strict=True):
            array.append(leaf, party, sizes)


def _files_of(values: Any, letter: str) -> Any:
    """The structure of arrays with the names of their files."""
    if values is None or isinstance(values, np.ndarray):
        return None if values is None else f"{letter}.npy"
    nodes = jax.tree.leaves(values, is_leaf=lambda node: not isinstance(node, dict))
    if not all(isinstance(node, np.ndarray) for node in nodes):
        raise InputError(f"write_packed writes arrays and dicts of arrays, got {type(values).__name__}: give a dict")
    leaves, structure = jax.tree.flatten(values)
    return jax.tree.unflatten(structure, [f"{letter}-{i}.npy" for i in range(len(leaves))])


def _numbers(labels: Any, classes: Sequence[str] | None, party: str) -> tuple[Any, Task, tuple[str, ...]]:
    """A party's labels as they are stored, the task and the names of the classes."""
    is_one_number = isinstance(labels, np.ndarray) and (labels.ndim == 1 or labels.dtype.kind == "f")
    if is_one_number:
        return label_arrays([labels], "regression" if classes is None else "classification", classes, (party,))
    return label_arrays([labels], "structured", classes, (party,))


def _check_names(parties: int, names: Sequence[str] | None) -> None:
    if not parties or (names is not None and len(names) != parties):
        count = "more parties" if names is not None and parties > len(names) else f"{parties} parties"
        raise InputError(f"there are {count} and {'no' if names is None else len(names)} names: give at least one "
                         "party, and a name to each")
    if names is not None and len(set(names)) < len(names):
        raise InputError("two parties have the same name: give each party a different name")


def open_packed(folder: Path | str) -> FederatedData:
    """The data that ``write_packed`` wrote. Samples stay on disk until they are indexed.

    Memory holds an offset, a length and two checksums per party and split, and nothing else that grows with the number
    of parties. The samples of a party's split are checked when they are read together, as the simulator reads them.

    Raises:
        InputError: the folder has no such data, or a file is damaged. Damaged samples are refused when they are read.

    Example:
        >>> data = rv.open_packed("packed-data")  # doctest: +SKIP
    """
    path = Path(folder)
    check_names(path)
    if not (path / _MANIFEST).is_file():
        raise InputError(f"{path} holds no packed data: {_MANIFEST}, which is written last, is missing. Write them "
                         "with rv.write_packed, again if that was interrupted")
    manifest = read_sealed(path / _MANIFEST, _ADVICE)
    if manifest.get("format") != _FORMAT:
        raise InputError(f"{path} is packed in format {shorten(manifest.get('format'))}, and this version reads "
                         f"{_FORMAT}: {_ADVICE}")
    check_files(path, manifest["files"], _ADVICE)
    lengths, checksums = np.load(path / _LENGTHS), np.load(path / _CHECKSUMS)
    bounds = np.concatenate([[0], np.cumsum(lengths.T.ravel(), dtype=np.int64)])
    files, structure = jax.tree.flatten((manifest["x"], manifest["y"]))
    arrays = [PackedArray(path / file, Blocks(bounds, of_file), scale=manifest["scale"] if file == "x.npy" else 1.0,
                          limits=limits, digest=digest)
              for file, of_file, limits, digest in zip(files, checksums, manifest["limits"], manifest["digests"],
                                                       strict=True)]
    if any(bounds[-1] != len(array) for array in arrays):
        counts = ", ".join(f"{len(array)} rows in {file}" for array, file in zip(arrays, files, strict=True))
        raise InputError(f"{path}: {counts} and the lengths of {lengths.shape[-1]} parties do not belong together: "
                         "write the data again")
    x, y = jax.tree.unflatten(structure, arrays)
    splits = {s: Split(bounds[i:-1:len(SPLITS)], lengths[i]) for i, s in enumerate(SPLITS)}
    names = NumberedNames(manifest["parties"]) if manifest["names"] is None else tuple(manifest["names"])
    return FederatedData(x, y, splits, names, manifest["task"],
                         tuple(manifest["classes"]), tuple(manifest["features"]), manifest["name"],
                         tuple(manifest["notes"]), tuple(manifest["vocabulary"]))
