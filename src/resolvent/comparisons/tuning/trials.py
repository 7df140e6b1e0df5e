"""Trials, what a strategy works with, and the files that store the results of finished trials."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from resolvent.comparisons.judgement.site_judgement import number_of, plain_number
from resolvent.comparisons.tuning.space import Point, Space
from resolvent.data.files.digests import read_sealed, write_sealed
from resolvent.errors import InputError

_REPORTS = 5  # number of reports of a trial to a pruner
_ADVICE = "restore the file, or begin in another folder"


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


# From number of a trial -> its point, and a number of rounds, to the reading of each trial after these rounds. A trial
# resumes at the end of an earlier call for it.
RunTrials = Callable[[Mapping[int, Point], int], list[Reading]]


class Candidates(NamedTuple):
    """The search space and the budget of one method.

    Attributes:
        space: values of its parameters.
        rounds: rounds of a full trial.
        loss: function of a score that is smaller for better scores, and infinite for NaN.
    """

    label: str
    space: Space
    rounds: int
    loss: Callable[[float], float]


def segments(rounds: int) -> list[int]:
    """The rounds after which a trial is reported to a pruner; equal parts, so that one program runs all of them."""
    part = max(1, rounds // _REPORTS)
    return [*range(part, rounds, part), rounds]


class TrialFiles:
    """The readings of finished parts of trials, a sealed file each, from which an interrupted search resumes.

    Args:
        folder: the folder of the files; None: nothing is stored.
    """

    def __init__(self, folder: Path | None, identity: str) -> None:
        self._folder = folder
        if folder is None:
            return
        path = folder / "search.json"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_sealed(path, {"search": identity})
        elif read_sealed(path, _ADVICE)["search"] != identity:
            raise InputError(f"{folder} belongs to another search, of other settings or of edited code: continue with "
                             "the same ones, or begin in another folder")

    def read(self, label: str, number: int, point: Point, rounds: int) -> Reading | None:
        """The reading of a trial after this number of rounds; None if there is none."""
        path, trial = self._path(label, number, point, rounds)
        if path is None or not path.exists():
            return None
        content = read_sealed(path, _ADVICE)
        if content["trial"] != trial:
            raise InputError(f"{path} is the file of another trial: {_ADVICE}")
        score, of_parties, test = content["reading"]
        return Reading(number_of(score), *({party: number_of(value) for party, value in values.items()}
                                           for values in (of_parties, test)))

    def write(self, label: str, number: int, point: Point, rounds: int, reading: Reading,
              runs: Sequence[str] = ()) -> None:
        """Store a reading, with the digests of its runs; it is on disk when the call returns."""
        path, trial = self._path(label, number, point, rounds)
        if path is not None:
            tables = [{party: plain_number(value) for party, value in values.items()}
                      for values in (reading.of_parties, reading.test)]
            write_sealed(path, {"trial": trial, "reading": [plain_number(reading.score), *tables], "runs": list(runs)})

    def _path(self, label: str, number: int, point: Point, rounds: int) -> tuple[Path | None, str]:
        """The file of a trial, and the text that identifies it."""
        trial = json.dumps([label, number, point, rounds], sort_keys=True)
        name = hashlib.sha256(trial.encode()).hexdigest()[:16]
        return None if self._folder is None else self._folder / f"{name}.json", trial
