"""Kills: a run that is killed at any file operation and resumed has the result of an uninterrupted run."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from signals import start_process
from torture.disk import Disk
from torture.outcome import RIGHT, TRACEBACK, WRONG, Answer, Outcome
from torture.scenario import RESUME, RUN, command, difference, new_folder, quick_runs

KIND = "kills"
# One case in ten each; the others are stopped once, in this process, as if it had been killed.
_PROCESS, _SIGNAL, _TWICE, _HOST = (9,), (8,), (6, 7), (4, 5)
_TIMEOUT = 300.0  # seconds for one process
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)


def run_case(seed, number, folder):
    """The outcome of one kill; the seed and the number determine which."""
    rng = np.random.default_rng([seed, number])
    form = number % 10
    if form in _HOST:
        return _host_kill(rng, folder, seed, number)
    if form in _SIGNAL:
        return _signal(rng, folder)
    count = len(operations())
    # The points of different cases differ until all are used.
    point = int(np.random.default_rng(seed).permutation(2 * count)[number % (2 * count)])
    stop, is_torn = divmod(point, 2)
    text = f"a {'torn ' if is_torn else ''}stop at file operation {stop} ({operations()[stop]})"
    case = new_folder(folder)
    if form in _PROCESS:
        answer = answer_of([sys.executable, "-m", "torture.disk", str(stop), str(is_torn), *RUN], case)
        if answer.has_traceback or answer.code != -signal.SIGKILL:
            return Outcome(KIND, f"SIGKILL: {text}", TRACEBACK if answer.has_traceback else WRONG,
                           f"the run was not killed: exit code {answer.code}, {answer.err[-1500:]}")
        text = f"SIGKILL: {text}"
    else:
        case = _stopped(case, RUN, stop, is_torn)
    if form in _TWICE:
        again = int(rng.integers(60))
        text += f", and the resumed run at its file operation {again}"
        case = _stopped(case, RESUME, again, rng.integers(2))
    return _resume(case, text)


@functools.cache
def operations():
    """The file operations of the whole run, in words."""
    with tempfile.TemporaryDirectory() as parent:
        case = new_folder(parent)
        with quick_runs(), Disk(case).watched() as disk:
            answer = command(*RUN, folder=case)
        assert answer.code == 0, answer.err
        return tuple(disk.operations)


def _stopped(case, arguments, stop, is_torn):
    """The folder as a stop leaves it. A run with fewer operations is complete."""
    copy = case.with_name(f"{case.name}-stopped")
    with quick_runs(), Disk(case, stop_at=stop, is_torn=bool(is_torn), copy=copy).watched() as disk:
        command(*arguments, folder=case)
    if not disk.has_stopped:
        return case
    shutil.rmtree(case)
    return copy


def _resume(case, text):
    """The outcome of resuming: the result must be right, and nothing else may be left in the folder."""
    before = sorted(p.relative_to(case).as_posix() for p in case.rglob("*"))
    with quick_runs():
        answer = command(*RESUME, folder=case)
    if answer.code:
        verdict = TRACEBACK if answer.has_traceback else WRONG
        return Outcome(KIND, text, verdict, f"--resume: exit code {answer.code}: {answer.err[-3000:]}\n"
                                            f"with the files {', '.join(before)}")
    left = sorted({p.name for p in case.iterdir()} - {"out", "small.yaml"})
    wrong = difference(case / "out") or (f"left in the folder: {', '.join(left)}" if left else "")
    shutil.rmtree(case)
    return Outcome(KIND, text, WRONG if wrong else RIGHT, wrong)


def answer_of(arguments, case, environment=None, signal_after=None):
    """The answer of a process in a folder.

    With ``signal_after`` = (signal, seconds) it gets a signal, these seconds after it has begun to handle signals:
    before that, it is the Python interpreter that starts, and not this library.
    """
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {**os.environ, "PYTHONPATH": path, "COLUMNS": "10000", **(environment or {})}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start_process(arguments, cwd=case, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=settings,
                                start_new_session=True)
        try:
            if signal_after is not None:
                number, seconds = signal_after
                _wait_for_handler(process)
                time.sleep(seconds)
                process.send_signal(number)
            process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            return Answer(-signal.SIGKILL, "", f"error: no end within {_TIMEOUT} s")
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it has started, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        err.seek(0)
        return Answer(process.returncode, out.read(), err.read())


def _wait_for_handler(process):
    """Wait until a process handles SIGTERM, or ends."""
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None and status.exists():
        caught = next((line for line in status.read_text().splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.005)


def _signal(rng, folder):
    """A signal at a random time: a one-line end, and a run that can be resumed."""
    number, seconds = _SIGNALS[rng.integers(len(_SIGNALS))], float(rng.uniform(0, 8))
    case = new_folder(folder)
    text = f"{number.name} after {seconds:.2f} s"
    answer = answer_of([sys.executable, "-m", "resolvent.cli", *RUN], case, signal_after=(number, seconds))
    ended = {0, -number, 128 + number} | ({130} if number != signal.SIGKILL else set())
    if answer.has_traceback or answer.code not in ended:
        return Outcome(KIND, text, TRACEBACK if answer.has_traceback else WRONG,
                       f"exit code {answer.code}: {answer.err[-3000:]}")
    return _resume(case, text)


# A run whose parties' states are in a file


def host_run(folder, *, resume=False):
    """(digest, metrics) of a run in host memory."""
    import resolvent as rv

    data = rv.datasets.digits(parties=6, classes_per_party=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = rv.simulate(rv.scaffold(rv.SGD(0.05, batch_size=20, epochs=1)), rv.models.logistic(64, 10), data,
                             rounds=6, evaluate_every=2, memory="host", checkpoint=folder / "checkpoint", resume=resume,
                             participation=rv.participation.Uniform(cohort=3), progress=False)
    return result.digest, result.metrics


@functools.cache
def host_truth():
    """The digest and the metrics of the whole run, and its file operations."""
    with tempfile.TemporaryDirectory() as folder:
        with Disk(folder).watched() as disk:
            digest, metrics = host_run(Path(folder))
        return digest, metrics, tuple(disk.operations)


def _host_kill(rng, folder, seed, number):
    digest, metrics, all_operations = host_truth()
    stop, is_torn = int(rng.integers(len(all_operations))), bool(rng.integers(2))
    text = f"a {'torn ' if is_torn else ''}stop of a run in host memory at file operation {stop} " \
           f"({all_operations[stop]})"
    case = Path(tempfile.mkdtemp(dir=folder, prefix="host-"))
    copy = case.with_name(f"{case.name}-stopped")
    with Disk(case, stop_at=stop, is_torn=is_torn, copy=copy).watched():
        host_run(case)
    try:
        resumed = host_run(copy, resume=True)
    except Exception as error:
        return Outcome(KIND, text, TRACEBACK, f"resume: {type(error).__name__}: {error}")
    is_equal = resumed[0] == digest and resumed[1].equals(metrics)
    shutil.rmtree(case)
    shutil.rmtree(copy)
    return Outcome(KIND, text, RIGHT if is_equal else WRONG, "" if is_equal else "the state or the metrics differ")
