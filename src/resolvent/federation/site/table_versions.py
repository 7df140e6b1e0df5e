"""The versions of a site's table: which rows the site uses, how it splits them, and what it has said about them.

Whoever subtracts two answers about nearly the same rows has the rows in which they differ. A site therefore gives one
answer for a version of its table, and two versions differ in each split by no row or by at least ``min_cell`` rows:

- The split comes from the site's own secret, and a row keeps its split for ever.
- New rows wait until there are ``min_cell`` of them. They join the splits in groups of at least ``min_cell`` rows.
- When rows were changed or removed, the site leaves further rows of the split out for ever, so that at least
  ``min_cell`` are missing. Rows of a patient who withdraws are thus no longer used from the next run on.

A version is stored as keyed hashes of the rows. The order of the rows in the file has no influence.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.data.federated import SPLITS
from resolvent.data.samples import split_sizes
from resolvent.federation.protocol.names import JOURNAL
from resolvent.federation.protocol.refusals import Refusal, RefusalCode
from resolvent.federation.protocol.stores import stored_secret
from resolvent.federation.site.journal import Journal

if TYPE_CHECKING:
    import pandas as pd

_SECRET, _SECRET_BYTES = "table.key", 32
_VERSION = re.compile(r"version-\d+\.npz")
_FACTOR, _STEP = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)  # odd: no bit of a hash is lost
_NO_ROWS = np.zeros(0, np.uint64)


class TableRows(NamedTuple):
    """The rows of a table that a site uses.

    Attributes:
        splits: split -> positions of its rows in the table.
        answer: (question, function that computes an answer of plain values) -> the stored answer about this version.
            The question has everything on which the answer depends.
        account: the keyed digest to which the budgets of these rows belong, whatever their file is called: that of the
            rows, or that of an earlier version of which the table has rows.
        is_first: whether the version has no row of an earlier one.
    """

    version: int
    splits: Mapping[str, NDArray[np.intp]]
    answer: Callable[[str, Callable[[], Any]], Any]
    secret: bytes = b""
    account: str = ""
    is_first: bool = True


class AnsweredVersion(NamedTuple):
    """What a site has said about a version of its table.

    Attributes:
        splits: split -> its rows: positions in the present table, or columns and hash of a row that it does not have.
        answers: question -> answer.
    """

    splits: Mapping[str, frozenset[Hashable]]
    answers: Mapping[str, Any]


class _Version(NamedTuple):
    """A stored version: file, names of its columns, split -> hashes of its rows, and those that are left out.

    Attributes:
        account: the digest to which the budgets of the rows belong: that of the first version from which they descend.
    """

    table: str
    account: str
    columns: tuple[str, ...]
    splits: Mapping[str, NDArray[np.uint64]]
    left_out: NDArray[np.uint64]

    def renamed(self, names: Mapping[int, int], columns: tuple[str, ...]) -> "_Version":
        """The same rows with their hashes over other columns; rows that the table lacks are absent."""
        def rename(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
            return np.array([names[row] for row in rows.tolist() if row in names], np.uint64)

        return self._replace(columns=columns, splits={name: rename(rows) for name, rows in self.splits.items()},
                             left_out=rename(self.left_out))


class TableVersions:
    """The versions of the tables of a site.

    Args:
        min_cell: smallest number of rows by which two versions differ.
    """

    def __init__(self, folder: Path, min_cell: int) -> None:
        self._folder, self._min_cell, self._journal = folder, min_cell, Journal(folder.parent / JOURNAL)

    def draw_splits(self) -> None:
        """Draw the site's secret unless it is there, so that a dry run has the splits of the runs that follow."""
        self._folder.mkdir(parents=True, exist_ok=True)
        _ = self._secret

    def rows(self, frame: "pd.DataFrame", table: str, validation: float, test: float) -> TableRows:
        """The rows that the site uses now; a new version is stored if enough rows differ.

        Args:
            validation: share of validation rows, of a table that has no version yet and of new rows.
            test: share of test rows.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        columns, shares = tuple(sorted(map(str, frame.columns))), (validation, test)
        versions = [self._read(number) for number in range(self._count)]
        comparable = [(number, version, self._hashes(frame, version.columns))
                      for number, version in reversed([*enumerate(versions)]) if {*version.columns} <= {*columns}]
        same_table = [version for version in versions if version.table == table]
        if same_table and not any(version.table == table for _, version, _ in comparable):
            lost = sorted({*same_table[-1].columns} - {*columns})
            raise Refusal(RefusalCode.TABLE, f"the table has lost {', '.join(lost)}, with which the site has answered: "
                          f"put the columns back. Without {self._folder} the site would answer anew, and whoever has "
                          "the old answers could compare them")
        for number, version, hashes in comparable:
            splits, added = _unchanged(version, hashes)
            if splits is not None and added < self._min_cell:
                if version.columns != columns:  # the values of the new columns belong to the version from now on
                    renamed = dict(zip(hashes.tolist(), self._hashes(frame, columns).tolist(), strict=True))
                    version, hashes = version.renamed(renamed, columns), self._hashes(frame, columns)
                return self._positions(number, version, hashes)
        hashes = self._hashes(frame, columns)
        base = next(((number, version, of_version) for number, version, of_version in comparable
                     if np.isin(of_version, _all_rows(version)).any()), None)
        if base is None:
            new = _Version(table, self._account(hashes), columns, self._drawn(hashes, shares, len(versions)), _NO_ROWS)
        else:
            new = self._changed(base[1], base[2], hashes, columns, shares, len(versions))._replace(table=table)
        self._check_distances(new, hashes, comparable)
        return self._positions(len(versions), new, hashes)

    def answered(self, frame: "pd.DataFrame") -> Iterator[AnsweredVersion]:
        """The stored versions, and what was said about each."""
        names = {*map(str, frame.columns)}
        for number in range(self._count):
            version = self._read(number)
            hashes = self._hashes(frame, version.columns).tolist() if {*version.columns} <= names else []
            position = {row: i for i, row in enumerate(hashes)}
            splits = {split: frozenset(position.get(row, (version.columns, row)) for row in rows.tolist())
                      for split, rows in version.splits.items()}
            yield AnsweredVersion(splits, {entry["question"]: entry["answer"]
                                           for entry in self._journal.of("answer", version=number)})

    def rows_of(self, frame: "pd.DataFrame", number: int) -> TableRows:
        """The rows of an earlier version that the table still has."""
        version = self._read(number)
        return self._positions(number, version, self._hashes(frame, version.columns))

    def _changed(self, version: _Version, old: NDArray[np.uint64], hashes: NDArray[np.uint64],
                 columns: tuple[str, ...], shares: tuple[float, float], number: int) -> _Version:
        """The next version: rows that are left, without further ones where rows are missing, and new rows.

        Args:
            old: [rows] hashes of the table's rows over the columns of this version.
            hashes: [rows] their hashes over all columns of the table.
        """
        present = version.renamed(dict(zip(old.tolist(), hashes.tolist(), strict=True)), columns)
        splits, left_out, random = {}, present.left_out.tolist(), self._random(number)
        for name, rows in present.splits.items():
            left, missing = rows.tolist(), len(version.splits[name]) - len(rows)
            further = max(0, self._min_cell - missing) if missing else 0
            chosen = {*random.permutation(len(left))[:further].tolist()}
            splits[name] = [row for i, row in enumerate(left) if i not in chosen]
            left_out += [left[i] for i in chosen]
        used = {*left_out, *(row for rows in splits.values() for row in rows)}
        new = np.array([row for row in hashes.tolist() if row not in used], np.uint64)
        if len(new) >= self._min_cell:
            for name, rows in self._drawn(new, shares, number, self._min_cell).items():
                splits[name] += rows.tolist()
        return present._replace(splits={name: np.array(rows, np.uint64) for name, rows in splits.items()},
                                left_out=np.array(left_out, np.uint64))

    def _drawn(self, hashes: NDArray[np.uint64], shares: tuple[float, float], number: int,
               fewest: int = 1) -> dict[str, NDArray[np.uint64]]:
        """Split rows by the secret; if a split would have fewer than ``fewest`` of them, all are training rows."""
        sizes = split_sizes(len(hashes), *shares)
        if any(0 < size < fewest for size in sizes):
            sizes = (len(hashes), 0, 0)
        drawn = self._random(number).permutation(np.sort(hashes))
        return dict(zip(SPLITS, np.split(drawn, np.cumsum(sizes)[:-1]), strict=True))

    def _check_distances(self, new: _Version, hashes: NDArray[np.uint64],
                         earlier: Sequence[tuple[int, _Version, NDArray[np.uint64]]]) -> None:
        """Raise a refusal if a split differs from that of an earlier version by a few rows."""
        for number, version, of_version in earlier:
            renamed = dict(zip(of_version.tolist(), hashes.tolist(), strict=True))
            for name, rows in version.splits.items():
                before = {renamed.get(row, ("gone", row)) for row in rows.tolist()}
                after = {*new.splits[name].tolist()}
                if 0 < max(len(before - after), len(after - before)) < min(self._min_cell, len(before)):
                    raise Refusal(RefusalCode.TABLE, f"the table differs from version {number}, about which the site "
                                  f"has answered, by fewer than min_cell {self._min_cell} rows of the split {name}: "
                                  "wait until more rows have changed")

    def _answer(self, number: int, version: _Version, question: str, compute: Callable[[], Any]) -> Any:
        if number >= self._count or self._read(number).columns != version.columns:
            self._write(number, version)  # only now: a table about which nothing was said can change freely
        if (stored := self._journal.latest("answer", version=number, question=question)) is not None:
            return stored["answer"]
        answer = compute()
        self._journal.append("answer", version=number, question=question, answer=answer, rows=version.account,
                             table=version.table)
        return answer

    def _positions(self, number: int, version: _Version, hashes: NDArray[np.uint64]) -> TableRows:
        """The rows of a version in a table whose rows have these hashes."""
        position = {row: i for i, row in enumerate(hashes.tolist())}
        present = {name: np.array([position[row] for row in rows.tolist() if row in position], np.intp)
                   for name, rows in version.splits.items()}
        is_first = version.account == self._account(_all_rows(version))
        return TableRows(number, present, partial(self._answer, number, version), self._secret, version.account,
                         is_first)

    @property
    def _count(self) -> int:
        return len({entry["file"] for entry in self._journal.of("file") if _VERSION.fullmatch(entry["file"])})

    def _path(self, number: int) -> Path:
        return self._folder / f"version-{number:04d}.npz"

    def _read(self, number: int) -> _Version:
        self._journal.has_file(self._path(number))  # or it is damaged
        with np.load(self._path(number)) as file:
            return _Version(str(file["table"]), str(file["account"]), tuple(map(str, file["columns"])),
                            {name: file[name] for name in SPLITS}, file["left_out"])

    def _write(self, number: int, version: _Version) -> None:
        def write(path: Path) -> None:
            with path.open("wb") as file:  # numpy would add an ending to a name
                arrays: dict[str, Any] = {"table": np.array(version.table), "account": np.array(version.account),
                                          "left_out": version.left_out, "columns": np.array(version.columns, np.str_),
                                          **version.splits}
                np.savez(file, **arrays)

        self._journal.write_file(self._path(number), write)

    def _account(self, hashes: NDArray[np.uint64]) -> str:
        """The keyed digest of a set of rows and of their columns."""
        return hmac.new(self._secret, np.sort(hashes).tobytes(), hashlib.sha256).hexdigest()

    @cached_property
    def _secret(self) -> bytes:
        path = self._folder / _SECRET
        if not self._journal.has_file(path):
            self._journal.write_file(path, lambda new: new.write_bytes(stored_secret(new, _SECRET_BYTES)))
        return path.read_bytes()

    def _random(self, number: int) -> np.random.Generator:
        return np.random.default_rng([number, *np.frombuffer(self._secret, np.uint32).tolist()])

    def _hashes(self, frame: "pd.DataFrame", columns: Sequence[str]) -> NDArray[np.uint64]:
        """[rows] the hash of each row over these columns; equal rows have different hashes."""
        import pandas as pd

        names = [str(name) for name in frame.columns]
        total = np.frombuffer(self._secret[:8], np.uint64).repeat(len(frame))
        for name in columns:
            total = total * _FACTOR + _cell_hashes(frame.iloc[:, names.index(name)])
        repeats = pd.Series(total).groupby(total).cumcount().to_numpy().astype(np.uint64)
        mixed: NDArray[np.uint64] = pd.util.hash_array(total + repeats * _STEP)
        return mixed


def _cell_hashes(column: "pd.Series[Any]") -> NDArray[np.uint64]:
    """[rows] a hash of each cell. A number has that of its value, whatever the type of its column is.

    A further row with a gap or a word makes a column of integers one of decimals or of texts: the hashes of the other
    rows must stay.
    """
    import pandas as pd

    if getattr(column.dtype, "kind", "O") in "biuf":
        no_word = pd.util.hash_array(np.array([""], object))
        return np.asarray(pd.util.hash_array(column.to_numpy(dtype=float) + 0.0) + _FACTOR * no_word)
    texts = column.astype(object).where(column.notna(), "").astype(str)
    lower = texts.str.lower()
    plain = lower.map({"true": "1", "false": "0"}).where(lower.isin(["true", "false"]), texts)
    numbers = pd.to_numeric(plain, errors="coerce").astype(float)
    words = plain.where(numbers.isna(), "")
    hashes: NDArray[np.uint64] = (pd.util.hash_array(numbers.to_numpy() + 0.0)
                                  + _FACTOR * pd.util.hash_array(words.to_numpy(dtype=object)))
    return hashes


def _all_rows(version: _Version) -> NDArray[np.uint64]:
    return np.concatenate([*version.splits.values()])


def _unchanged(version: _Version, hashes: NDArray[np.uint64]) -> tuple[Mapping[str, Any] | None, int]:
    """The splits of a version, None if the table lacks one of its rows; and the number of new rows in the table."""
    rows = _all_rows(version)
    added = int((~np.isin(hashes, np.concatenate([rows, version.left_out]))).sum())
    return (version.splits if np.isin(rows, hashes).all() else None), added

