"""The campaign: runs the cases in several processes, prints failures and a table."""

import argparse
import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from unittest import mock

from torture import inputs
from torture.outcome import TRACEBACK, WRONG, Outcome, failure_line, table

_FAST = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
_PROGRESS_EVERY = 30.0  # seconds
TASK_SECONDS = 600  # for one case, or for a chunk of hostile input
_KINDS = {"tables": inputs.TABLES, "messy": inputs.MESSY, "experiments": inputs.EXPERIMENTS,
          "arguments": inputs.ARGUMENTS}
PARTS = ("kills", "corrupted", "tables", "messy", "experiments", "arguments", "resources", "promises")


def tasks(options):
    """(part, number or name, cases, seed) of everything to run. A task is one case, or a chunk of hostile input."""
    from torture import promises, resources

    result = []
    for part in ("kills", "corrupted"):
        numbers = range(getattr(options, part)) if options.case is None else [options.case]
        result += [(part, number, 1, options.seed) for number in numbers if getattr(options, part)]
    for part, kind in _KINDS.items():
        names = inputs.names(kind)
        for i, name in enumerate(names):
            remaining = getattr(options, part) // len(names) + (i < getattr(options, part) % len(names))
            for chunk in range(-(-remaining // inputs.CHUNK)):
                cases = min(inputs.CHUNK, remaining - chunk * inputs.CHUNK)
                result.append((part, name, cases, 1000 * options.seed + chunk))
    if options.resources:
        result += [("resources", name, 1, options.seed) for name in resources.CASES
                   if options.only is None or options.only in name]
    if options.promises:
        result += [("promises", name, 1, options.seed) for name in promises.CASES
                   if options.only is None or options.only in name]
    return result


class TooLongError(BaseException):
    """A task has not ended in its time. No code of the library catches it."""


@contextlib.contextmanager
def time_limit(seconds):
    """End the block with ``TooLongError`` after some seconds."""
    def stop(number, frame):
        raise TooLongError(f"no end within {seconds} s")

    former = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def run_task(task):
    """The outcomes of a task; an error of the campaign itself is a failure too, and so is a task without an end."""
    part, name, cases, seed = task
    try:
        with time_limit(TASK_SECONDS):
            outcomes = _outcomes(part, name, cases, seed)
    except TooLongError as error:
        outcomes = [Outcome(part, str(name), WRONG, str(error))]
    except Exception:
        outcomes = [Outcome(part, "the campaign itself", TRACEBACK, traceback.format_exc(limit=-12))]
    if part in _KINDS:
        return outcomes
    number = "" if part in ("resources", "promises") else f" --{part} 1 --seed {seed}"
    return [o._replace(case=f"{o.case}: python tests/torture --only {part}{number} --case {name!r}") for o in outcomes]


def _outcomes(part, name, cases, seed):
    from torture import corruption, kills, promises, resources

    folder = Path(tempfile.gettempdir())
    if part in _KINDS:
        return inputs.run_cases(_KINDS[part], name, cases, seed, folder)
    if part in ("resources", "promises"):
        return {"resources": resources, "promises": promises}[part].run_case(name, folder)
    return [{"kills": kills, "corrupted": corruption}[part].run_case(seed, name, folder)]


def run(all_tasks, jobs=1, write=print):
    """The outcomes of all tasks. Failures are printed when they happen."""
    outcomes, begin, printed = [], time.monotonic(), time.monotonic()
    # Workers are forked before this process computes anything, so that JAX has no threads yet.
    context = multiprocessing.get_context("fork")
    # All files are below one folder, which is removed at the end, also if a worker was killed.
    with (tempfile.TemporaryDirectory(prefix="torture-", ignore_cleanup_errors=True) as folder,
          mock.patch.object(tempfile, "tempdir", folder), context.Pool(jobs) as pool):
        for done, results in enumerate(pool.imap_unordered(run_task, all_tasks), 1):
            outcomes += results
            for outcome in results:
                if outcome.is_failure:
                    write(failure_line(outcome))
            if time.monotonic() - printed > _PROGRESS_EVERY or done == len(all_tasks):
                printed = time.monotonic()
                write(f"{done} of {len(all_tasks)} tasks, {printed - begin:.0f} s, "
                      f"{sum(o.is_failure for o in outcomes)} failures")
        pool.close()
        pool.join()
    return outcomes


def main(arguments=None):
    """Run the command line. Returns the exit code: 1 if a result was wrong or a traceback was printed."""
    parser = argparse.ArgumentParser(prog="python tests/torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="number of kills")
    parser.add_argument("--corrupted", type=int, default=500, help="number of damaged files")
    parser.add_argument("--tables", type=int, default=5000, help="number of hostile tables, frames and documents")
    parser.add_argument("--messy", type=int, default=2000, help="number of messy tables, read by every reader")
    parser.add_argument("--experiments", type=int, default=3000, help="number of mutated experiment files")
    parser.add_argument("--arguments", type=int, default=1000, help="number of wrong Python arguments")
    parser.add_argument("--no-resources", dest="resources", action="store_false", help="leave resource faults out")
    parser.add_argument("--no-promises", dest="promises", action="store_false", help="leave changed code out")
    parser.add_argument("--seed", type=int, default=0, help="seed of all cases")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8), help="number of processes")
    parser.add_argument("--only", choices=PARTS, help="run one part")
    parser.add_argument("--case", help="run one case of that part: its number or, of resources, its name")
    options = parser.parse_args(arguments)
    if options.case is not None and options.only not in ("kills", "corrupted", "resources", "promises"):
        parser.error("--case needs --only kills, corrupted, resources or promises")
    for part in PARTS:
        if options.only not in (None, part):
            setattr(options, part, 0)
    if options.only in ("resources", "promises"):
        options.only = options.case
    elif options.case is not None:
        options.only, options.case = None, int(options.case)
    else:
        options.only = None
    _set_environment()
    print(f"seed {options.seed}", flush=True)
    outcomes = run(tasks(options), options.jobs, write=lambda text: print(text, flush=True))
    print("\n".join(["", *table(outcomes)]))
    return int(any(outcome.is_failure for outcome in outcomes))


def _set_environment():
    """Compile fast: compiling takes most of the time. Results stay equal, because all runs are compiled alike."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FAST}".strip()
    os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")
    os.environ.setdefault("PJRT_NPROC", "1")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
