"""Trials, and the file that stores the results of finished trials."""

import json
import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from resolvent.comparisons.tuning.space import Point
from resolvent.data.files.atomic_files import sync_to_disk
from resolvent.data.files.digests import SEAL, seal
from resolvent.errors import InputError

__all__ = ["Ledger", "Reading", "Trial"]

_BEFORE = "before"  # the digest of the line before


class Reading(NamedTuple):
    """The results of a trial after a number of rounds.

    Attributes:
        score: the metric on the validation samples of all parties together; NaN if the training diverged.
        of_parties: party -> the metric on its validation samples; parties for which it is not defined are absent.
        test: party -> the metric on its test samples. It has no influence on any choice.
    """

    score: float
    of_parties: dict[str, float]
    test: dict[str, float]


class Trial(NamedTuple):
    """A candidate of a method.

    Attributes:
        label: label of the method.
        number: number of the trial among those of the method, from 1.
        point: the values of the parameters.
        rounds: rounds of each of its runs so far.
        spent: rounds of all of its runs: ``rounds`` times the number of seeds.
        reading: its results after these rounds.
        is_complete: whether it ran all rounds; false if it was stopped.
    """

    label: str
    number: int
    point: Point
    rounds: int
    spent: int
    reading: Reading
    is_complete: bool


class Ledger:
    """The readings of finished parts of trials. A file stores them, if there is a folder, so that a search can resume.

    Each reading is a line at the end of the file, with the digest of itself and of the line before it: an edited, moved
    or missing line is refused. A last line that is cut off, because the program was killed while
    writing it, is removed with a warning when the file is read.
    """

    def __init__(self, path: Path | None, identity: str) -> None:
        """Read what the file has, or begin one.

        Args:
            path: path of the file; None: nothing is written.
            identity: a text that is the same for the same search.

        Raises:
            InputError: the file belongs to another search, or a line before the last one is damaged.
        """
        self._path, self._readings, self._last = path, dict[str, Reading](), ""
        if path is None:
            return
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"search": identity})
            return
        lines = _read_lines(path)
        self._last = _check_seals(path, lines)
        if not lines:  # killed while the first line was written
            self._append({"search": identity})
            return
        if lines[0].get("search") != identity:
            raise InputError(f"{path} belongs to another search, of other settings or of edited code: continue with "
                             "the same ones, or begin in another folder")
        for line in lines[1:]:
            self._readings[line["trial"]] = Reading(_number(line["score"]), _numbers(line["of_parties"]),
                                                    _numbers(line["test"]))

    def get(self, label: str, number: int, point: Point, rounds: int) -> Reading | None:
        """The reading of a trial after this number of rounds; None if there is none."""
        return self._readings.get(_key(label, number, point, rounds))

    def add(self, label: str, number: int, point: Point, rounds: int, reading: Reading,
            runs: Sequence[str] = ()) -> None:
        """Store a reading, with the digests of its runs; it is on disk when the call returns."""
        key = _key(label, number, point, rounds)
        self._readings[key] = reading
        if self._path is not None:
            self._append({"trial": key, **{name: _json(value) for name, value in reading._asdict().items()},
                          "runs": list(runs)})

    def _append(self, line: dict[str, Any]) -> None:
        assert self._path is not None
        line = seal({**line, _BEFORE: self._last})
        with self._path.open("ab") as file:
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        sync_to_disk(self._path)
        self._last = line[SEAL]


def _key(label: str, number: int, point: Point, rounds: int) -> str:
    return json.dumps([label, number, point, rounds], sort_keys=True)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, from which a line at the end that is cut off is removed.

    Raises:
        InputError: another line is damaged.
    """
    content = path.read_bytes()
    whole = content[:content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
        warnings.warn(f"{path}: the last line was cut off when the search was interrupted; the trial is run again",
                      stacklevel=2)
    lines = whole.splitlines()
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise InputError(f"{path} is damaged: restore it, or begin in another folder") from error


def _check_seals(path: Path, lines: Sequence[dict[str, Any]]) -> str:
    """The digest of the last line.

    Raises:
        InputError: a line is not the one that was written after the line before it.
    """
    last = ""
    for number, line in enumerate(lines, start=1):
        if SEAL not in line:
            raise InputError(f"{path}:{number}: the line has no SHA-256, it is damaged or of an earlier version of "
                             "resolvent: begin in another folder")
        if line.get(_BEFORE) != last or seal(line)[SEAL] != line[SEAL]:
            raise InputError(f"{path}:{number}: the line is damaged, or a line before it is missing: restore the file, "
                             "or begin in another folder")
        last = line[SEAL]
    return last


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json(item) for key, item in value.items()}
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _numbers(values: dict[str, float | None]) -> dict[str, float]:
    return {key: _number(value) for key, value in values.items()}
