"""Comparison of the methods of several run folders, as if they were methods of one run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.row_values import RowValues
from resolvent.comparisons.judgement.verdict import judge
from resolvent.comparisons.runs.summary import METRICS_FILE, ROWS_FILE, final_scores, judgement, read_summary
from resolvent.data.files.digests import check_files
from resolvent.errors import InputError, shorten

if TYPE_CHECKING:
    import pandas as pd

_SAME = ("score", "split", "higher_is_better", "decides", "seeds", "folds", "baseline")
_ADVICE = "run them with the same data, seed and number of seeds"


class _Run(NamedTuple):
    """A run in a folder.

    Attributes:
        rows: the values of its test rows, sorted by seed, party and row; None if it has none.
    """

    folder: Path
    summary: dict[str, Any]
    metrics: "pd.DataFrame"
    rows: RowValues | None


def compare_runs(folders: Sequence[Path]) -> dict[str, Any]:
    """Judge the methods of several runs together.

    Args:
        folders: run folders, at least two.

    Returns:
        The judgement in the form of a run's summary, with the label and the run of each method.

    Raises:
        InputError: there are fewer than two, a folder has no finished run or no test rows, or the test rows differ.
    """
    if len(folders) < 2:
        raise InputError("name at least two run folders, such as runs/mine runs/mine-2")
    saved = read_runs(folders)
    if saved.evidence.rows is None:
        raise InputError(f"{folders[0]} has no values of single test rows, which a comparison of runs needs: runs on "
                         "problems without samples and of earlier versions have none")
    first, verdict = saved.summaries[0], judge(saved.evidence)
    methods = {label: {"run": str(folders[number]), "method": method, "final": final_scores(verdict, label)}
               for (number, method), label in saved.labels.items()}
    return {"runs": [str(folder) for folder in folders], **judgement(verdict), "seeds": first["seeds"],
            "folds": first.get("folds", 1), "data": first["data"], "methods": methods}


class SavedRuns(NamedTuple):
    """What is read from run folders.

    Attributes:
        evidence: the measurements of all methods, as if they were methods of one run.
        summaries: the summary of each folder.
        labels: number of the folder and name of its method -> label; a method that several folders have with the same
            result has one label.
    """

    evidence: Evidence
    summaries: list[dict[str, Any]]
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
    baseline, rows = first.summary["baseline"], None
    if first.rows is not None:
        every = slice(None)
        parts = [run.rows.chosen(every, {method: label for (n, method), label in labels.items() if n == number} | (
            {baseline: baseline} if baseline is not None and run is first else {}))
                 for number, run in enumerate(runs) if run.rows is not None]
        rows = replace(parts[0], values={m: v for part in parts for m, v in part.values.items()},
                       models={key: v for part in parts for key, v in part.models.items()})
    alone = next((label for (number, method), label in labels.items() if runs[number].summary["alone"] == method), None)
    evidence = Evidence(
        first.summary["score"], first.summary["split"], first.summary["higher_is_better"], tuple(labels.values()),
        alone, first.summary["data"]["parties"], _metrics(runs, labels), tuple(first.summary["seeds"]),
        rows, baseline, first.summary["data"]["train"],
        {label: float(sum(runs[number].summary["methods"][method]["bytes"].values()))
         for (number, method), label in labels.items()},
        frozenset(label for (number, method), label in labels.items()
                  if runs[number].summary["methods"][method].get("is_bound")), first.summary.get("folds", 1),
        bool(first.summary.get("decides")), int(first.summary.get("coefficients", 0)))
    return SavedRuns(evidence, [run.summary for run in runs], labels)


def _read(folder: Path) -> _Run:
    import pandas as pd

    summary = read_summary(folder)
    files = summary.get("files", {})
    metrics = pd.read_parquet(folder / METRICS_FILE)
    if ROWS_FILE not in files:
        return _Run(folder, summary, metrics, None)
    check_files(folder, {ROWS_FILE: files[ROWS_FILE]}, "run the experiment again")
    rows = RowValues.read(folder / ROWS_FILE)
    order = np.lexsort((rows.row, rows.party, rows.seed))
    return _Run(folder, summary, metrics, rows.chosen(order))


def _check_same_rows(first: _Run, other: _Run) -> None:
    """Raise an error unless two runs have the same test rows.

    The values of the baseline are compared as well, because they depend only on the labels of the training and test
    rows: different values mean different labels.
    """
    both = f"{first.folder} and {other.folder}"
    for key in _SAME:
        default = 1 if key == "folds" else None
        if first.summary.get(key, default) != other.summary.get(key, default):
            raise InputError(f"{both} differ in {key}, {shorten(first.summary.get(key))} and "
                             f"{shorten(other.summary.get(key))}: {_ADVICE}")
    def keys(run: _Run, name: str) -> "np.ndarray[Any, Any]":
        return np.zeros(0) if run.rows is None else getattr(run.rows, name)

    same_rows = all(np.array_equal(keys(first, name), keys(other, name)) for name in ("seed", "party", "row"))
    baseline = first.summary["baseline"]
    same_labels = same_rows and (baseline is None or first.rows is None or other.rows is None or np.array_equal(
        first.rows.values[baseline], other.rows.values[baseline], equal_nan=True))
    if first.summary["data"]["parties"] != other.summary["data"]["parties"] or not same_labels:
        raise InputError(f"{both} differ in their sites or in their test rows, so that methods cannot be paired: "
                         f"{_ADVICE}")


def _labels(runs: Sequence[_Run]) -> dict[tuple[int, str], str]:
    """(number of the run, its method) -> label; a method with the same digests as an earlier method is left out."""
    known: dict[tuple[str, ...], tuple[int, str]] = {}
    for number, run in enumerate(runs):
        for method, facts in run.summary["methods"].items():
            known.setdefault((method, *facts["digests"]), (number, method))
    count = Counter(method for _, method in known.values())
    names = [run.folder.name for run in runs]
    titles = [name if names.count(name) == 1 else str(run.folder) for name, run in zip(names, runs, strict=True)]
    return {(number, method): method if count[method] == 1 else f"{method} ({titles[number]})"
            for number, method in known.values()}


def _metrics(runs: Sequence[_Run], labels: dict[tuple[int, str], str]) -> "pd.DataFrame":
    import pandas as pd

    return pd.concat([runs[number].metrics[runs[number].metrics["method"] == method].assign(method=label)
                      for (number, method), label in labels.items()], ignore_index=True)
