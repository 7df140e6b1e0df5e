"""Damaged files: the result is right, or one line names the file. It is never wrong."""

import functools
import shutil
import tempfile
import warnings
from pathlib import Path

import numpy as np

from resolvent.testing.faults import damage
from torture import kills
from torture.disk import Disk
from torture.outcome import RIGHT, TRACEBACK, WRONG, Outcome, judge_refusal
from torture.scenario import RESUME, RUN, command, difference, new_folder, quick_runs, truth

KIND = "corrupted files"
ROOT = Path(__file__).parents[2]


def run_case(seed, number, folder):
    """The outcome of one damage; the seed and the number determine which."""
    rng = np.random.default_rng([seed, number])
    check = _CHECKS[number % len(_CHECKS)]
    with tempfile.TemporaryDirectory(dir=folder) as case:
        return check(rng, Path(case))


def _files(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file())


def _files_of_run(folder):
    """The files at the top of a finished run, and one of a model."""
    top = sorted(p for p in folder.iterdir() if p.is_file())
    return [*top, next(iter(sorted(folder.rglob("*.safetensors"))))]


def _judge(words, answer, names, wrong):
    """The outcome of a command: right, or refused with the name of the file."""
    if answer.code == 0 and not answer.has_traceback:
        return Outcome(KIND, words, WRONG if wrong else RIGHT, f"differs: {wrong}" if wrong else "")
    return Outcome(KIND, words, *judge_refusal(answer, names))


def _damaged_run(rng, case):
    """A copy of the finished run with one damaged file. Returns the damage in words, and the names of the file."""
    shutil.copytree(truth(), case, dirs_exist_ok=True)
    return damage(rng, _files(case / "out"), case)


# The commands that read files


@functools.cache
def _finished():
    """A finished run, and what the commands answer about it."""
    with quick_runs():
        report = command("show", "out", "--redraw", folder=truth())
        complete = command(*RESUME, folder=truth())
    assert report.code == complete.code == 0, report.err + complete.err
    return (truth() / "out" / "report.html").read_bytes(), complete.out


def _report(rng, case):
    """The report of a finished run."""
    page, _ = _finished()
    shutil.copytree(truth(), case, dirs_exist_ok=True)
    words, names = damage(rng, _files_of_run(case / "out"), case)
    with quick_runs():
        answer = command("show", "out", "--redraw", folder=case)
    wrong = "report.html" if answer.code == 0 and (case / "out" / "report.html").read_bytes() != page else ""
    return _judge(f"resolvent show --redraw, {words}", answer, names, wrong)


def _complete(rng, case):
    """``--resume`` of a finished run, which prints its table."""
    _, table = _finished()
    shutil.copytree(truth(), case, dirs_exist_ok=True)
    words, names = damage(rng, _files_of_run(case / "out"), case)
    with quick_runs():
        answer = command(*RESUME, folder=case)
    return _judge(f"resolvent run --resume of a finished run, {words}", answer, names,
                  "the table" if answer.out != table else "")


def _interrupted(rng, case):
    """``--resume`` of an unfinished run."""
    stops = [k for k, text in enumerate(kills.operations()) if "checkpoints/00/0" in text or "checkpoints/01/0" in text]
    start = new_folder(case)
    copy = case / "copy"
    with quick_runs(), Disk(start, stop_at=stops[rng.integers(len(stops))] + 1, copy=copy).watched():
        command(*RUN, folder=start)
    files = _files(copy / "out.partial")
    words, names = damage(rng, files, copy)
    with quick_runs():
        answer = command(*RESUME, folder=copy)
    wrong = difference(copy / "out") if answer.code == 0 else ""
    return _judge(f"resolvent run --resume of an unfinished run, {words}", answer, names, wrong)


def _library(words, names, run):
    """The outcome of a call of the library, which returns whether its result is right."""
    from resolvent.errors import InputError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            is_right = run()
    except InputError as error:
        message = str(error)
        if len(message.splitlines()) > 1 or not any(name in message for name in names):
            return Outcome(KIND, words, WRONG, f"the error names none of {', '.join(names)}: {message}")
        return Outcome(KIND, words, "refused", message)
    except Exception as error:
        return Outcome(KIND, words, TRACEBACK, f"{type(error).__name__}: {error}")
    return Outcome(KIND, words, RIGHT if is_right else WRONG, "" if is_right else "the content differs")


def _host(rng, case):
    """Resuming a run in host memory."""
    digest, metrics, all_operations = kills.host_truth()
    stop = int(rng.integers(len(all_operations) // 2, len(all_operations)))
    start, copy = case / "start", case / "copy"
    start.mkdir()
    with Disk(start, stop_at=stop, copy=copy).watched():
        kills.host_run(start)
    words, names = damage(rng, _files(copy), copy)

    def run():
        resumed = kills.host_run(copy, resume=True)
        return resumed[0] == digest and resumed[1].equals(metrics)
    return _library(f"resuming in host memory after operation {stop}, {words}", names, run)


def _packed(rng, case):
    """Reading packed data."""
    import resolvent as rv

    source = np.random.default_rng(0)
    parties = [(source.normal(size=(n, 3)).astype(np.float32), source.integers(0, 2, n)) for n in (5, 9, 7)]
    data = rv.write_packed(case / "packed", parties, classes=["0", "1"], names=["A", "B", "C"])
    expected = _content(data)
    words, names = damage(rng, _files(case / "packed"), case)
    return _library(f"open_packed, {words}", [*names, "packed"], lambda: _content(rv.open_packed(case / "packed"))
                    == expected)


def _content(data):
    return (np.asarray(data.x[:]).tobytes(), np.asarray(data.y[:]).tobytes(), tuple(data.parties), tuple(data.classes),
            data.task, data.name, data.notes, data.features,
            *(tuple(np.asarray(getattr(data.splits[s], part)).tolist()) for s in data.splits
              for part in ("offset", "length")))


# What a finished run is used for


def _compared(rng, case):
    """The comparison of two runs of which one has a damaged file."""
    words, names = _damaged_run(rng, case)
    shutil.copytree(truth() / "out", case / "other")
    answer = command("compare", "out", "other", folder=case)
    wrong = "the table" if answer.code == 0 and answer.out != _compared_without_damage() else ""
    return _judge(f"resolvent compare, {words}", answer, [*names, "out", "other"], wrong)


@functools.cache
def _compared_without_damage():
    with tempfile.TemporaryDirectory() as folder:
        for name in ("out", "other"):
            shutil.copytree(truth() / "out", Path(folder) / name)
        answer = command("compare", "out", "other", folder=folder)
    assert answer.code == 0, answer.err
    return answer.out


def _fitted_answers(folder, rows):
    """What the personal model of a run predicts for rows, and its scores on them."""
    import resolvent as rv

    x, y = rows
    fitted = rv.load(folder, method="Scaffold", site="party 0")
    return np.asarray(fitted.predict(x)).tolist(), str(fitted.evaluate(x, y))


@functools.cache
def _rows():
    """Test samples of a party, with their labels."""
    import resolvent as rv

    data = rv.datasets.digits(parties=3, classes_per_party=5)
    party = data.splits["test"]
    rows = slice(int(party.offset[0]), int(party.offset[0]) + int(party.length[0]))
    return np.asarray(data.x[rows]), np.asarray(data.classes)[np.asarray(data.y[rows])]


def _loaded(rng, case):
    """``rv.load`` of a run with a damaged file, and the predictions and scores of its model."""
    words, names = _damaged_run(rng, case)
    return _library(f"rv.load, predict, evaluate, {words}", [*names, "out"],
                    lambda: _fitted_answers(case / "out", _rows()) == _fitted_answers(truth() / "out", _rows()))


def _predicted(rng, case):
    """``resolvent model predict`` with the model of a run with a damaged file."""
    words, names = _damaged_run(rng, case)
    np.save(case / "rows.npy", _rows()[0])
    command_line = ("model", "predict", str(case / "out"), str(case / "rows.npy"), "--method", "Scaffold", "--site",
                    "party 0",
                    "--out", str(case / "predictions.csv"))
    answer = command(*command_line, folder=case)
    wrong = ""
    if answer.code == 0 and not answer.has_traceback:
        whole = command("model", "predict", str(truth() / "out"), *command_line[3:-1],
                        str(case / "whole.csv"), folder=case)
        assert whole.code == 0, whole.err
        written = [(case / f"{name}.csv").read_bytes() for name in ("whole", "predictions")]
        wrong = "" if written[0] == written[1] else "the predictions"
    return _judge(f"resolvent model predict, {words}", answer, [*names, "out"], wrong)


TUNING = {"rounds": 1, "strategy": "grid", "seed": 0}


def _tuned(folder):
    import resolvent as rv

    problem = rv.problems.least_squares(parties=2, features=2)
    return rv.tune(lambda rate: rv.fedavg(rv.solvers.GD(rate, steps=1)), {"rate": [1e-5, 1e-4, 1e-3]}, problem,
                   folder=folder, **TUNING).table.to_csv()


def _trials(rng, case):
    """The same search with a damaged file of its finished trials."""
    whole = _tuned(case / "search")
    words, names = damage(rng, _files(case / "search"), case)
    return _library(f"rv.tune of a finished search, {words}", names, lambda: _tuned(case / "search") == whole)


_CHECKS = (_interrupted, _interrupted, _interrupted, _report, _complete, _host, _packed, _packed, _report,
           _compared, _loaded, _predicted, _trials)
