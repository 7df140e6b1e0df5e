"""Hostile input: tables, experiment files and Python arguments. Each is refused in one line, or accepted and valid.

Messy tables are those of people: all readers say the same about them.
"""

import contextlib
import importlib
import inspect
import io
import re
import sys
import tempfile
from pathlib import Path

from torture.outcome import REFUSED, RIGHT, TRACEBACK, Outcome

TESTS = Path(__file__).parents[1]
TABLES, MESSY, EXPERIMENTS, ARGUMENTS = ("hostile tables", "messy tables", "mutated experiment files",
                                         "wrong Python arguments")
_COUNTS = re.compile(r"(\d+) cases, (\d+) accepted, (\d+) refused")
# Of each kind: the folder and the module of the cases, and functions of (cases, seed) or (cases, seed, folder) that
# return the failures.
_MODULES = {TABLES: ("data", "hostile", ("run_frames", "run_leaf_documents", "run_text_tables")),
            MESSY: ("federation", "messy_readers", ("run_messy",)),
            EXPERIMENTS: ("comparisons", "hostile_experiments", ("run",)),
            ARGUMENTS: ("comparisons", "hostile_arguments", ("run_random",))}
CHUNK = 100  # cases in one task of the campaign


def names(kind):
    """The names of the functions that run cases of a kind."""
    return _MODULES[kind][2]


def functions(kind):
    """The functions that run cases of a kind, by name. Their modules are imported here: they compute with JAX."""
    folder, module, _ = _MODULES[kind]
    if str(TESTS / folder) not in sys.path:
        sys.path.insert(0, str(TESTS / folder))
    return {name: getattr(importlib.import_module(module), name) for name in names(kind)}


def run_cases(kind, name, cases, seed, folder):
    """The outcomes of some cases: those that are accepted, those that are refused, and each failure."""
    output = io.StringIO()
    title = f"{kind}: {name}, {cases} cases, seed {seed}"
    function = functions(kind)[name]
    with tempfile.TemporaryDirectory(dir=folder) as case, contextlib.redirect_stdout(output):
        folders = [Path(case)] if "folder" in inspect.signature(function).parameters else []
        failures = function(cases, seed, *folders)
    counts = _COUNTS.search(output.getvalue())
    accepted, refused = (int(counts[2]), int(counts[3])) if counts else (cases - len(failures), 0)
    return [Outcome(kind, title, RIGHT, count=accepted), Outcome(kind, title, REFUSED, count=refused),
            *(Outcome(kind, title, TRACEBACK, str(failure)) for failure in failures)]
