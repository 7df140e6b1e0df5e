"""Faults without damage: own code that changes between runs, models that diverge, names that collide."""

import sys
import tempfile

from torture.kills import answer_of
from torture.outcome import REFUSED, RIGHT, TRACEBACK, WRONG, Outcome
from torture.scenario import EXPERIMENT, command, new_folder, quick_runs

KIND = "broken promises"
SOURCE = """\
import jax
import resolvent as rv

STEP = 0.5

def scale(x):
    return STEP * x

def mine(solver):
    return rv.fedprox(solver, mu=float(scale(1.0)))

def score(labels, predictions):
    return float(STEP)
"""
CASES = {}


def run_case(name, folder):
    """The outcomes of one fault."""
    with tempfile.TemporaryDirectory(dir=folder) as parent, quick_runs():
        return [CASES[name](new_folder(parent))._replace(kind=KIND, case=name)]


def _case(name):
    def register(function):
        CASES[name] = function
        return function
    return register


def _must_be_refused(answer, words):
    """The outcome of a command that must say one of the words and end with an exit code of its own."""
    if answer.has_traceback:
        return Outcome(KIND, "", TRACEBACK, answer.err[-2000:])
    is_refused = answer.code > 0 and any(word in answer.err for word in words)
    return Outcome(KIND, "", REFUSED if is_refused else WRONG, f"exit code {answer.code}: {answer.err[-1000:]}")


def _own_experiment(case, metrics=""):
    (case / "own.py").write_text(SOURCE)
    text = EXPERIMENT.replace("  alone: local\n", "  alone: local\n  Mine: own:mine\n") + metrics
    (case / "own.yaml").write_text(text)


@_case("a global of own code changes before --resume")
def _changed_code(case):
    _own_experiment(case)
    # In new processes, which import the module again.
    run = [sys.executable, "-m", "resolvent.cli", "run", "own.yaml", "--out", "out"]
    first = answer_of(run, case)
    if first.code:
        return Outcome(KIND, "", WRONG, f"exit code {first.code}: {first.err[-1000:]}")
    (case / "own.py").write_text(SOURCE.replace("STEP = 0.5", "STEP = 0.9"))
    return _must_be_refused(answer_of([*run, "--resume"], case), ("Mine", "own", "chang"))


@_case("a metric has the name of the score")
def _colliding_metric(case):
    _own_experiment(case, "metrics: {accuracy: log_loss}\n")
    return _must_be_refused(command("run", "own.yaml", "--out", "out", folder=case), ("accuracy",))


@_case("a diverged model predicts")
def _diverged(case):
    import numpy as np

    (case / "wild.yaml").write_text(EXPERIMENT.replace("learning_rate: 0.05", "learning_rate: 3.0e+38"))
    answer = command("run", "wild.yaml", "--out", "out", folder=case)
    if answer.has_traceback:
        return Outcome(KIND, "", TRACEBACK, answer.err[-2000:])
    np.save(case / "rows.npy", np.zeros((2, 64), np.float32))
    answer = command("model", "predict", "out", "rows.npy", "--method", "alone", "--site", "party 0", folder=case)
    return _must_be_refused(answer, ("diverged", "not finite"))


@_case("a method has the name of a folder")
def _colliding_labels(case):
    (case / "names.yaml").write_text(EXPERIMENT.replace("  alone: local", "  ../alone: local\n  Alone: local"))
    answer = command("run", "names.yaml", "--out", "out", folder=case)
    if answer.code == 0 and not answer.has_traceback:
        escaped = [p.name for p in case.iterdir() if p.name not in ("out", "names.yaml", "small.yaml")]
        return Outcome(KIND, "", WRONG if escaped else RIGHT, str(escaped))
    return _must_be_refused(answer, ("alone",))
