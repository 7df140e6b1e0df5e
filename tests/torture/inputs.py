"""Hostile input: tables, experiment files and Python arguments. Each is refused in one line, or accepted and valid."""

import contextlib
import importlib
import io
import re
import sys
import tempfile
from pathlib import Path

from torture.outcome import REFUSED, RIGHT, TRACEBACK, Outcome

TESTS = Path(__file__).parents[1]
TABLES, EXPERIMENTS = "hostile tables", "hostile experiments"
_COUNTS = re.compile(r"(\d+) cases, (\d+) accepted, (\d+) refused")
# The module with the cases of each kind: it has functions run_...(cases, seed, folder), which return failures.
_MODULES = {TABLES: ("data", "hostile"), EXPERIMENTS: ("study", "hostile_experiments")}
CHUNK = 100  # cases in one task of the campaign


def functions(kind):
    """The functions that run cases of a kind; none if the module does not exist."""
    folder, name = _MODULES[kind]
    if not (TESTS / folder / f"{name}.py").is_file():
        return {}
    with contextlib.suppress(ValueError):
        sys.path.remove(str(TESTS / folder))
    sys.path.insert(0, str(TESTS / folder))
    module = importlib.import_module(name)
    return {key: value for key, value in sorted(vars(module).items()) if key.startswith("run_")}


def run_cases(kind, name, cases, seed, folder):
    """The outcomes of some cases: those that are accepted, those that are refused, and each failure."""
    output = io.StringIO()
    title = f"{name.removeprefix('run_').replace('_', ' ')}, seed {seed}"
    with tempfile.TemporaryDirectory(dir=folder) as case, contextlib.redirect_stdout(output):
        failures = functions(kind)[name](cases, seed, Path(case))
    counts = _COUNTS.search(output.getvalue())
    accepted, refused = (int(counts[2]), int(counts[3])) if counts else (cases - len(failures), 0)
    return [Outcome(kind, title, RIGHT, count=accepted), Outcome(kind, title, REFUSED, count=refused),
            *(Outcome(kind, title, TRACEBACK, str(failure)) for failure in failures)]
