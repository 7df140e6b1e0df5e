"""A small experiment, how it is run in this process, and the result that every run of it must have."""

import contextlib
import functools
import io
import json
import os
import shutil
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from unittest import mock

from markupsafe import Markup

from torture.outcome import Answer

# Two methods, of which the second stores a state at the server and at every party.
EXPERIMENT = """\
data: {name: digits, parties: 3, classes_per_party: 5}
model: logistic
solver: {name: SGD, learning_rate: 0.05, batch_size: 20, epochs: 1}
algorithms:
  alone: local
  Scaffold: scaffold
rounds: 6
evaluate_every: 2
diagnostics: [model_change]
"""
RUN = ("run", "small.yaml", "--out", "out")
RESUME = (*RUN, "--resume")
_MEASURED = ("seconds_per_round", "compile_seconds", "evaluation_seconds")


@contextlib.contextmanager
def quick_runs():
    """Write a checkpoint after every evaluation, and draw no pictures, which would take most of the time."""
    from resolvent.comparisons.runs import figures
    from resolvent.simulator.checkpoint.checkpoints import CheckpointTimer

    with (mock.patch.object(CheckpointTimer, "is_due", return_value=True),
          mock.patch.object(figures, "svg_of", return_value=Markup("<svg></svg>"))):
        yield


def command(*arguments, folder):
    """The answer of the command line in this process."""
    from resolvent import cli

    out, err, code, previous = io.StringIO(), io.StringIO(), 0, Path.cwd()
    os.chdir(folder)
    with (mock.patch.object(sys, "argv", ["resolvent", *map(str, arguments)]), contextlib.redirect_stdout(out),
          contextlib.redirect_stderr(err), mock.patch.dict(os.environ, COLUMNS="10000"), warnings.catch_warnings()):
        warnings.simplefilter("always")
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except Exception:
            code = 1
            traceback.print_exc()
        finally:
            os.chdir(previous)
    return Answer(code, out.getvalue(), err.getvalue())


@functools.cache
def truth():
    """The folder of a run without faults, with its result and its experiment file. It is made once in a process."""
    folder = Path(tempfile.mkdtemp(prefix="truth-"))
    (folder / "small.yaml").write_text(EXPERIMENT)
    with quick_runs():
        answer = command(*RUN, folder=folder)
    assert answer.code == 0, answer.err
    return folder


def new_folder(parent):
    """A new folder with the experiment file."""
    folder = Path(tempfile.mkdtemp(dir=parent, prefix="case-"))
    shutil.copy(truth() / "small.yaml", folder)
    return folder


def difference(folder, expected=None):
    """What in a finished run differs from a run without faults; empty if nothing does. Measured seconds may differ."""
    import pandas as pd

    expected = truth() / "out" if expected is None else expected
    if not (folder / "summary.json").is_file():
        return f"{folder.name} holds no finished run"
    names = [{p.relative_to(f).as_posix() for p in f.rglob("*") if p.is_file()} for f in (folder, expected)]
    if names[0] != names[1]:
        return f"the files {sorted(names[0] ^ names[1])}"
    if _summary(folder) != _summary(expected):
        return "summary.json"
    if not pd.read_parquet(folder / "metrics.parquet").equals(pd.read_parquet(expected / "metrics.parquet")):
        return "metrics.parquet"
    return ", ".join(sorted(name for name in names[1] if name not in ("summary.json", "metrics.parquet", "report.html")
                            and (folder / name).read_bytes() != (expected / name).read_bytes()))


def _summary(folder):
    """The summary without what is measured, and without digests, which are those of compared files."""
    summary = json.loads((folder / "summary.json").read_text())
    for method in summary["methods"].values():
        for key in _MEASURED:
            del method[key]
    return {key: value for key, value in summary.items() if key not in ("files", "sha256")}
