"""The numbers in the files that commands write: a comparison of digits, a regression, a table's run and its refit."""

import json
import re
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

from command_line import call_command
from comparisons.six_sites import EXPERIMENT, visits

COMMANDS = {
    "digits": ["run", "digits", "--rounds", "2", "--out", "digits"],
    "regression": ["regress", "visits.csv", "--formula", "outcome ~ age + smoker + C(ward)", "--party", "hospital",
                   "--out", "regression"],
    "table": ["run", "mine.yaml", "--out", "table"],
    "refit": ["model", "refit", "table"],
}
# What differs from run to run: measured times and sizes, versions, and digests of all of this.
_MEASURED = re.compile(r"second|time|bytes|memory|version|digest|sha256|cpu|created|\bmib\b", re.IGNORECASE)
_IDENTITY = re.compile(r"^[0-9a-f]{8}$")  # a folder that is named by a digest


def record():
    """The numbers of all files, by file and place."""
    values = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        visits(rows=600).drop(columns="patient").to_csv(folder / "visits.csv", index=False)
        (folder / "mine.yaml").write_text(EXPERIMENT.replace("evaluate_every: 10", "evaluate_every: 2"))
        for command in COMMANDS.values():
            outcome = call_command(*command, cwd=folder)
            if outcome.code:
                raise RuntimeError(f"resolvent {' '.join(command)}: {outcome.err}")
        for path in sorted(folder.glob("*/**/*")):
            parts = [part for part in path.relative_to(folder).parts if not _IDENTITY.match(part)]
            for place, numbers in _numbers(path).items():
                values["/".join(["files", *parts, place])] = numbers
    return values


def _numbers(path):
    """Place in the file -> its numbers."""
    if path.suffix == ".json":
        places = {}
        for place, number in _leaves(json.loads(path.read_text("utf-8"))):
            if not _MEASURED.search(place):
                places.setdefault(place, []).append(number)
        return {place: np.array(numbers, np.float64) for place, numbers in places.items()}
    if path.suffix == ".safetensors":
        return {name: array.astype(np.float64) for name, array in load_file(path).items()}
    if path.suffix in (".parquet", ".csv"):
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
        if "metric" in frame:
            frame = frame[~frame["metric"].str.contains(_MEASURED.pattern, case=False)]
        return {name: column.to_numpy(np.float64, na_value=np.nan)
                for name, column in frame.items() if pd.api.types.is_numeric_dtype(column)}
    return {}


def _leaves(value, place=""):
    """The numbers of a JSON value with their places; the entries of a list share one."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _leaves(entry, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for entry in value:
            yield from _leaves(entry, place)
    elif isinstance(value, int | float):  # true and false are numbers
        yield place, value
