"""Federated data on disk: written party by party and read party by party, so that they may exceed the memory.

A folder holds ``x.npy`` and ``y.npy``, the parties' samples one after the other (a party's training samples, then its
validation samples, then its test samples), ``lengths.npy`` with how many each has, and ``packed.json``, which is
written last: a folder without it is not complete.
"""

import contextlib
import hashlib
import json
import math
import os
import weakref
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from resolvent.data.federated import SPLITS, FederatedData, Split, check_party, number_labels, split_sizes
from resolvent.errors import InputError

__all__ = ["NumberedNames", "PackedArray", "open_packed", "open_until_gone", "read_exactly", "write_packed"]

_FORMAT = 1
_MANIFEST = "packed.json"
_BEFORE = ("x.npy", "y.npy", "lengths.npy", ".packed.json.partial")  # what writing that broke off may have left


class NumberedNames(Sequence[str]):
    """The names ``party 0``, ``party 1``, ... of so many parties, made when they are asked for."""

    def __init__(self, count: int) -> None:
        self._numbers = range(count)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._numbers)

    @overload
    def __getitem__(self, k: int) -> str: ...
    @overload
    def __getitem__(self, k: slice) -> tuple[str, ...]: ...
    def __getitem__(self, k: int | slice) -> str | tuple[str, ...]:
        """One name, or several."""
        return tuple(f"party {i}" for i in self._numbers[k]) if isinstance(k, slice) else f"party {self._numbers[k]}"

    def index(self, name: Any, start: int = 0, stop: int | None = None) -> int:
        """The number of the party of that name."""
        digits = str(name).removeprefix("party ")
        k = int(digits) if digits.isascii() and digits.isdigit() else -1
        if k not in self._numbers[slice(start, stop)] or name != self[k]:
            raise ValueError(f"{name!r} is not among the names")
        return k

    def __contains__(self, name: object) -> bool:
        """Whether a party has that name."""
        with contextlib.suppress(ValueError):
            return self.index(name) >= 0
        return False


class PackedArray:
    """An array [total, ...] in an ``.npy`` file, of which rows are read when they are asked for.

    The file is read and not mapped: the pages of a map count as this process's memory, and a mapped file that is cut
    short, or a disk that is full, kills the process where reading raises an error.

    Attributes:
        shape: of the array.
        dtype: of the rows that are read: float32 where stored numbers are scaled, or else as stored.
    """

    def __init__(self, path: Path, *, scale: float = 1.0, limits: Sequence[int] = (0, 0), digest: str = "") -> None:
        self._path, self._scale, self._limits, self.digest = path, scale, limits, digest
        try:
            with path.open("rb") as file:
                np.lib.format.read_magic(file)
                self.shape, _, self._stored = np.lib.format.read_array_header_2_0(file)
                self._begin = file.tell()
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}. Write the data again") from error
        self._file = open_until_gone(self, path, os.O_RDONLY)
        self.dtype = np.dtype(np.float32) if scale != 1 else self._stored
        self._row = self._stored.itemsize * math.prod(self.shape[1:])
        have, need = os.fstat(self._file).st_size, self._begin + self.nbytes_stored
        if have != need:
            raise InputError(f"{path} has {have} bytes, and its {len(self)} rows need {need}: it is damaged, write the "
                             "data again")

    def __len__(self) -> int:
        """How many rows there are."""
        return int(self.shape[0])

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return math.prod(self.shape)

    @property
    def nbytes_stored(self) -> int:
        """Bytes on the disk."""
        return len(self) * self._row

    def min(self) -> int:
        """The smallest of integers, as it was found when they were written."""
        return int(self._limits[0])

    def max(self) -> int:
        """The largest of integers, as it was found when they were written."""
        return int(self._limits[1])

    def __getitem__(self, rows: slice | ArrayLike) -> NDArray[Any]:
        """Rows as they are used: scaled where they are stored small."""
        if isinstance(rows, slice):
            begin, end, step = rows.indices(len(self))
            found = np.empty((max(end - begin, 0), *self.shape[1:]), self._stored)
            read_exactly(self._file, found, self._begin + begin * self._row, self._path)
            return self._scaled(found)[::step]
        numbers = np.arange(len(self))[np.asarray(rows)]
        return np.concatenate([self[k:k + 1] for k in numbers.ravel()]).reshape(*numbers.shape, *self.shape[1:])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """All rows."""
        whole = self[:]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def astype(self, dtype: DTypeLike) -> NDArray[Any]:
        """All rows, in another type."""
        return self[:].astype(dtype, copy=False)

    def _scaled(self, stored: NDArray[Any]) -> NDArray[Any]:
        return stored if self._scale == 1 else stored.astype(np.float32) * np.float32(self._scale)


def open_until_gone(owner: object, path: Path, flags: int) -> int:
    """Open a file that is closed when its owner is no more."""
    file = os.open(path, flags, 0o644)
    weakref.finalize(owner, os.close, file)
    return file


def read_exactly(file: int, into: NDArray[Any], offset: int, path: Path) -> None:
    """Fill an array with the bytes of a file from ``offset`` on, wherever the file stands.

    Raises:
        InputError: the file ends before.
    """
    left = into.reshape(-1).view(np.uint8).data
    while left:
        count = os.preadv(file, [left], offset)
        if not count:
            raise InputError(f"{path} ends at byte {offset}, where {len(left)} more were expected: it is damaged")
        left, offset = left[count:], offset + count


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
    """Write parties to a folder one by one, as they come, and open it. What is written is whole or not at all.

    A party's samples are split as ``FederatedData.from_arrays`` splits them, so that both hold the same.

    Args:
        folder: a folder that does not exist, is empty, or was left when writing broke off.
        parties: (inputs [n_k, ...], labels [n_k]) of each party; inputs of one shape and type. An iterator serves, and
            no party is kept.
        classes: the labels in the order of their class numbers; None: the labels are real numbers.
        names: the parties' names; default ``party 0``, ``party 1``, ...
        validation: share of each party's samples kept for validation.
        test: share of each party's samples kept for testing.
        seed: of the split.
        scale: what stored inputs are multiplied by when they are read: pixels 0 to 255 stay uint8 on the disk with
            ``scale=1/255``.
        name: what the data is, for reports.
        features: names of the inputs' columns.
        notes: facts that a reader of a report should know.
        vocabulary: what the tokens 0, 1, ... stand for, where inputs are sequences of tokens.

    Raises:
        InputError: a party's samples are not usable, or the folder is.
    """
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(p.name not in _BEFORE for p in place.iterdir())):
        raise InputError(f"{place} is used already: give write_packed a folder of its own")
    place.mkdir(parents=True, exist_ok=True)
    lengths: list[tuple[int, int, int]] = []
    many = 0 if names is None else len(names) + 1  # one more than there are names is enough to see that there are more
    with _Writer(place / "x.npy") as x_file, _Writer(place / "y.npy") as y_file:
        for k, (x, y) in enumerate(parties if names is None else islice(parties, many)):
            who = f"party {k}" if names is None or k >= len(names) else names[k]
            inputs, labels = np.asarray(x), np.asarray(y)
            check_party(who, inputs, labels, inputs.shape[1:] if k == 0 else x_file.shape)
            numbers, task, known = number_labels(
                [labels], "regression" if classes is None else "classification", classes, (who,))
            sizes = split_sizes(len(inputs), validation, test)
            order = np.random.default_rng([seed, k]).permutation(len(inputs))
            x_file.add(inputs[order], who)
            y_file.add(numbers[order], who)
            lengths.append(sizes)
    if not lengths or (names is not None and len(names) != len(lengths)):
        raise InputError(f"there are {'more parties' if len(lengths) == many else f'{len(lengths)} parties'} and "
                         f"{'no' if names is None else len(names)} names: give at least one party, and a name to each")
    if names is not None and len(set(names)) < len(names):
        raise InputError("two parties have the same name: give each party a name of its own")
    with (place / "lengths.npy").open("wb") as file:
        np.save(file, np.array(lengths, np.int32).T)
    facts = {"format": _FORMAT, "name": name, "task": task, "parties": len(lengths), "classes": known,
             "features": list(features), "notes": list(notes), "vocabulary": list(vocabulary), "scale": scale,
             "names": None if names is None else list(names), "limits": x_file.limits,
             "digests": [x_file.digest, y_file.digest]}
    partial = place / f".{_MANIFEST}.partial"
    partial.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    partial.replace(place / _MANIFEST)
    return open_packed(place)


def open_packed(folder: Path | str) -> FederatedData:
    """The data that ``write_packed`` wrote: samples stay on the disk until they are asked for.

    Memory holds an offset and a length per party and split, and nothing else that grows with the number of parties.

    Raises:
        InputError: there are none, or a file is damaged.
    """
    place = Path(folder)
    if not (place / _MANIFEST).is_file():
        raise InputError(f"{place} holds no packed data: {_MANIFEST}, which is written last, is missing. Write them "
                         "with rv.write_packed, again where that was interrupted")
    facts = json.loads((place / _MANIFEST).read_text(encoding="utf-8"))
    if facts.get("format") != _FORMAT:
        raise InputError(f"{place} is packed in format {facts.get('format')}, and this version reads {_FORMAT}: write "
                         "the data again")
    try:
        lengths = np.load(place / "lengths.npy")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{place / 'lengths.npy'} cannot be read: {error}. It is damaged, write the data again"
                         ) from error
    x, y = (PackedArray(place / f"{which}.npy", scale=scale, limits=limits, digest=digest)
            for which, scale, limits, digest in zip("xy", (facts["scale"], 1.0), (facts["limits"], (0, 0)),
                                                    facts["digests"], strict=True))
    if lengths.shape != (len(SPLITS), facts["parties"]) or not lengths.sum(dtype=np.int64) == len(x) == len(y):
        raise InputError(f"{place}: {len(x)} inputs, {len(y)} labels and the lengths of {lengths.shape[-1]} parties do "
                         "not belong together: write the data again")
    ends = np.cumsum(lengths.T.ravel(), dtype=np.int64).reshape(-1, len(SPLITS)).T
    splits = {s: Split((ends[i] - lengths[i]), lengths[i]) for i, s in enumerate(SPLITS)}
    names = NumberedNames(facts["parties"]) if facts["names"] is None else tuple(facts["names"])
    return FederatedData(cast("NDArray[Any]", x), cast("NDArray[Any]", y), splits, names, facts["task"],
                         tuple(facts["classes"]), tuple(facts["features"]), facts["name"], tuple(facts["notes"]),
                         tuple(facts["vocabulary"]))


class _Writer:
    """An ``.npy`` file that grows by rows."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb", buffering=2**20)
        self.shape: tuple[int, ...] = ()
        self.dtype: np.dtype[Any] | None = None
        self.rows = 0
        self.limits = [0, 0]
        self._sum = hashlib.sha256()

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *failure: object) -> None:
        with self.file:
            if self.dtype is not None and failure[0] is None:
                end = self.file.tell()
                self.file.seek(0)
                self._head()  # of the same length: NumPy leaves room for the first axis to grow
                self.file.seek(end)
                self.file.flush()
                os.fsync(self.file.fileno())

    def add(self, rows: NDArray[Any], who: str) -> None:
        if self.dtype is None:
            self.shape, self.dtype = rows.shape[1:], rows.dtype
            self._head()
        if rows.dtype != self.dtype:
            raise InputError(f"party {who!r} has numbers of type {rows.dtype}, the first party's are {self.dtype}: "
                             "give all of one type")
        if rows.dtype.kind in "iu":
            low, high = int(rows.min()), int(rows.max())
            self.limits = [min(low, self.limits[0]), max(high, self.limits[1])] if self.rows else [low, high]
        data = np.ascontiguousarray(rows).data
        self.file.write(data)
        self._sum.update(data)
        self.rows += len(rows)

    @property
    def digest(self) -> str:
        return f"{self._sum.hexdigest()} {self.dtype} {self.rows} {self.shape}"

    def _head(self) -> None:
        assert self.dtype is not None
        np.lib.format.write_array_header_2_0(self.file, {
            "descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False,
            "shape": (self.rows, *self.shape)})
