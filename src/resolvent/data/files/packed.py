"""Federated data on disk: written and read party by party, so that they may exceed the memory.

A folder holds ``x.npy`` and ``y.npy``, the parties' samples one after the other (a party's training samples, then its
validation samples, then its test samples), ``lengths.npy`` [3, N] with the number of each, ``checksums.npy`` [2, 3 N]
with the CRC-32 of these parts of both files, and ``packed.json``. This manifest has the digests of the two tables and
of itself. It is written last: a folder without it is incomplete.
"""

import contextlib
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import override

from resolvent.data.federated import SPLITS, FederatedData, Split
from resolvent.data.files.array_files import ArrayWriter, Blocks, PackedArray
from resolvent.data.files.digests import check_files, file_digests, read_sealed, write_sealed
from resolvent.data.files.folder_lock import check_names
from resolvent.data.samples import (
    array_of,
    check_party,
    check_representable,
    number_labels,
    split_order,
    split_sizes,
)
from resolvent.errors import InputError, shorten

__all__ = ["NumberedNames", "open_packed", "write_packed"]

_FORMAT = 2
_MANIFEST, _LENGTHS, _CHECKSUMS = "packed.json", "lengths.npy", "checksums.npy"
_FILES_OF_INTERRUPTED_WRITE = ("x.npy", "y.npy", _LENGTHS, _CHECKSUMS, f".{_MANIFEST}.partial")
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
    parties: Iterable[tuple[ArrayLike, ArrayLike]],
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
        parties: (inputs [n_k, ...], labels [n_k]) of each party; inputs of one shape and type. It may be an iterator;
            only one party is in memory at a time.
        classes: the labels in the order of their class numbers; None: the labels are real numbers.
        names: the parties' names; default ``party 0``, ``party 1``, ...
        validation: share of each party's samples for validation.
        test: share of each party's samples for testing.
        seed: seed of the split.
        scale: factor of stored inputs when they are read: with ``scale=1/255``, pixels 0 to 255 stay uint8 on disk.
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
    if path.exists() and (not path.is_dir() or any(p.name not in _FILES_OF_INTERRUPTED_WRITE for p in path.iterdir())):
        raise InputError(f"{path} is used already: give write_packed an empty folder, or one that does not exist")
    path.mkdir(parents=True, exist_ok=True)
    lengths: list[tuple[int, int, int]] = []
    with ArrayWriter(path / "x.npy") as x_file, ArrayWriter(path / "y.npy") as y_file:
        # One party more than there are names is enough to see that there are too many.
        for k, (x, y) in enumerate(parties if names is None else islice(parties, len(names) + 1)):
            party = f"party {k}" if names is None or k >= len(names) else names[k]
            inputs, labels = array_of(x, "write_packed: inputs", party), array_of(y, "write_packed: labels", party)
            check_party(party, inputs, labels, inputs.shape[1:] if k == 0 else x_file.shape)
            check_representable(party, inputs, "the input")
            check_representable(party, labels, "the label")
            numbers, task, class_names = number_labels(
                [labels], "regression" if classes is None else "classification", classes, (party,))
            sizes = split_sizes(len(inputs), validation, test)
            order = split_order(len(inputs), k, seed)
            x_file.append(inputs[order], party, sizes)
            y_file.append(numbers[order], party, sizes)
            lengths.append(sizes)
    _check_names(len(lengths), names)
    np.save(path / _LENGTHS, np.array(lengths, np.int32).T)
    np.save(path / _CHECKSUMS, np.array([x_file.checksums, y_file.checksums], np.uint32))
    manifest = {"format": _FORMAT, "name": name, "task": task, "parties": len(lengths), "classes": class_names,
                "features": list(features), "notes": list(notes), "vocabulary": list(vocabulary), "scale": scale,
                "names": None if names is None else list(names), "limits": x_file.limits,
                "digests": [x_file.digest, y_file.digest], "files": file_digests(path, (_LENGTHS, _CHECKSUMS))}
    write_sealed(path / _MANIFEST, manifest)
    return open_packed(path)


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
    x_digest, y_digest = manifest["digests"]
    x = PackedArray(path / "x.npy", Blocks(bounds, checksums[0]), scale=manifest["scale"], limits=manifest["limits"],
                    digest=x_digest)
    y = PackedArray(path / "y.npy", Blocks(bounds, checksums[1]), digest=y_digest)
    if not bounds[-1] == len(x) == len(y):
        raise InputError(f"{path}: {len(x)} inputs, {len(y)} labels and the lengths of {lengths.shape[-1]} parties do "
                         "not belong together: write the data again")
    splits = {s: Split(bounds[i:-1:len(SPLITS)], lengths[i]) for i, s in enumerate(SPLITS)}
    names = NumberedNames(manifest["parties"]) if manifest["names"] is None else tuple(manifest["names"])
    return FederatedData(cast("NDArray[Any]", x), cast("NDArray[Any]", y), splits, names, manifest["task"],
                         tuple(manifest["classes"]), tuple(manifest["features"]), manifest["name"],
                         tuple(manifest["notes"]), tuple(manifest["vocabulary"]))
