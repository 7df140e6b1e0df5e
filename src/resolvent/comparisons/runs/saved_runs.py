"""Comparison of the methods of several run folders, as if they were methods of one run."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.row_values import RowValues
from resolvent.comparisons.judgement.verdict import judge
from resolvent.comparisons.runs.record import ROWS_FILE, MethodRecord, RunRecord, read_metrics, read_record
from resolvent.comparisons.runs.summary import final_scores, record_of
from resolvent.data.files.digests import check_files
from resolvent.errors import InputError, shorten

if TYPE_CHECKING:
    import pandas as pd

_SAME: tuple[tuple[str, Callable[[RunRecord], Any]], ...] = (
    ("score", lambda run: run.score), ("split", lambda run: run.split), ("decides", lambda run: run.decides),
    ("higher_is_better", lambda run: run.higher_is_better), ("seeds", lambda run: run.seeds),
    ("folds", lambda run: run.folds), ("baseline", lambda run: run.baseline))
_ADVICE = "run them with the same data, seed and number of seeds"


class _Run(NamedTuple):
    """A run in a folder.

    Attributes:
        rows: the values of its test rows, sorted by seed, party and row; None if it has none.
    """

    folder: Path
    record: RunRecord
    metrics: "pd.DataFrame"
    rows: RowValues | None


def compare_runs(folders: Sequence[Path]) -> RunRecord:
    """Judge the methods of several runs together.

    Args:
        folders: run folders, at least two.

    Returns:
        The record of the methods, with the run of each method and its label there.

    Raises:
        InputError: there are fewer than two, a folder has no finished run or no test rows, or the test rows differ.
    """
    if len(folders) < 2:
        raise InputError("name at least two run folders, such as runs/mine runs/mine-2")
    saved = read_runs(folders)
    if saved.evidence.rows is None:
        raise InputError(f"{folders[0]} has no values of single test rows, which a comparison of runs needs: runs on "
                         "problems without samples and of earlier versions have none")
    first, verdict = saved.records[0], judge(saved.evidence)
    methods = {label: MethodRecord(final_scores(verdict, label), run=str(folders[number]), method=method)
               for (number, method), label in saved.labels.items()}
    return record_of(verdict, first.seeds, first.data, methods, folds=first.folds)


class SavedRuns(NamedTuple):
    """What is read from run folders.

    Attributes:
        evidence: the measurements of all methods, as if they were methods of one run.
        records: the record of each folder.
        labels: number of the folder and name of its method -> label; a method that several folders have with the same
            result has one label.
    """

    evidence: Evidence
    records: list[RunRecord]
    labels: dict[tuple[int, str], str]


def read_runs(folders: Sequence[Path]) -> SavedRuns:
    """The measurements of the methods of one or several runs on the same test rows.

    Raises:
        InputError: a folder has no finished run, or the test rows differ.
    """
    runs = [_read(folder) for folder in folders]
    first = runs[0]
    for run in runs[1:]:
        _check_same_rows(first, run)
    labels = _labels(runs)
    baseline, rows = first.record.baseline, None
    if first.rows is not None:
        every = slice(None)
        parts = [run.rows.chosen(every, {method: label for (n, method), label in labels.items() if n == number} | (
            {baseline: baseline} if baseline is not None and run is first else {}))
                 for number, run in enumerate(runs) if run.rows is not None]
        rows = replace(parts[0], values={m: v for part in parts for m, v in part.values.items()},
                       models={key: v for part in parts for key, v in part.models.items()})
    alone = next((label for (number, method), label in labels.items() if runs[number].record.alone == method), None)
    methods = {label: runs[number].record.methods[method] for (number, method), label in labels.items()}
    evidence = Evidence(
        score=first.record.score, split=first.record.split, higher_is_better=first.record.higher_is_better,
        methods=tuple(labels.values()), alone=alone, parties=first.record.data.parties,
        metrics=_metrics(runs, labels), seeds=tuple(first.record.seeds), rows=rows, baseline=baseline,
        train=first.record.data.train,
        traffic={label: float(method.bytes.down + method.bytes.up) for label, method in methods.items()},
        bounds=frozenset(label for label, method in methods.items() if method.is_bound), folds=first.record.folds,
        decides=first.record.decides, coefficients=first.record.coefficients)
    return SavedRuns(evidence, [run.record for run in runs], labels)


def _read(folder: Path) -> _Run:
    record = read_record(folder)
    metrics = read_metrics(folder)
    if ROWS_FILE not in record.files:
        return _Run(folder, record, metrics, None)
    check_files(folder, {ROWS_FILE: record.files[ROWS_FILE]}, "run the experiment again")
    rows = RowValues.read(folder / ROWS_FILE)
    order = np.lexsort((rows.row, rows.party, rows.seed))
    return _Run(folder, record, metrics, rows.chosen(order))


def _check_same_rows(first: _Run, other: _Run) -> None:
    """Raise an error unless two runs have the same test rows.

    The values of the baseline are compared as well, because they depend only on the labels of the training and test
    rows: different values mean different labels.
    """
    both = f"{first.folder} and {other.folder}"
    for name, value in _SAME:
        if value(first.record) != value(other.record):
            raise InputError(f"{both} differ in {name}, {shorten(value(first.record))} and "
                             f"{shorten(value(other.record))}: {_ADVICE}")

    def keys(run: _Run, name: str) -> "np.ndarray[Any, Any]":
        return np.zeros(0) if run.rows is None else getattr(run.rows, name)

    same_rows = all(np.array_equal(keys(first, name), keys(other, name)) for name in ("seed", "party", "row"))
    baseline = first.record.baseline
    same_labels = same_rows and (baseline is None or first.rows is None or other.rows is None or np.array_equal(
        first.rows.values[baseline], other.rows.values[baseline], equal_nan=True))
    if first.record.data.parties != other.record.data.parties or not same_labels:
        raise InputError(f"{both} differ in their sites or in their test rows, so that methods cannot be paired: "
                         f"{_ADVICE}")


def _labels(runs: Sequence[_Run]) -> dict[tuple[int, str], str]:
    """(number of the run, its method) -> label; a method with the same digests as an earlier method is left out."""
    known: dict[tuple[str, ...], tuple[int, str]] = {}
    for number, run in enumerate(runs):
        for method, facts in run.record.methods.items():
            known.setdefault((method, *facts.digests), (number, method))
    count = Counter(method for _, method in known.values())
    names = [run.folder.name for run in runs]
    titles = [name if names.count(name) == 1 else str(run.folder) for name, run in zip(names, runs, strict=True)]
    return {(number, method): method if count[method] == 1 else f"{method} ({titles[number]})"
            for number, method in known.values()}


def _metrics(runs: Sequence[_Run], labels: dict[tuple[int, str], str]) -> "pd.DataFrame":
    import pandas as pd

    return pd.concat([runs[number].metrics[runs[number].metrics["method"] == method].assign(method=label)
                      for (number, method), label in labels.items()], ignore_index=True)
