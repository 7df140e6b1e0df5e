"""Several reproductions at a time, each in its own process, and the comparison of their verdicts with known ones."""

import csv
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copyfile
from typing import Any, NamedTuple

from experiments import FAILURE, NO_DATA
from experiments.claims import NOT_DECIDED, VERDICTS, is_borderline, items_of
from experiments.results import read_record, read_records, write_page
from resolvent.errors import InputError, shorten
from resolvent.files import remove_folder, write_atomically, write_text

COLUMNS = ("name", "seconds", "verdict", "spreads", "claim")
_FAILED, _SKIPPED = "failed", "skipped"
# A process finds this package in any folder, and prints each line at once.
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(
    [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])}


class Known(NamedTuple):
    """A known verdict on a claim.

    Attributes:
        verdict: the verdict.
        spreads: the standard deviation of each of its numbers over seeds; empty if there was one seed.
    """

    verdict: str
    spreads: tuple[float | None, ...] = ()


Verdicts = Mapping[tuple[str, str], Known]  # (name, claim) -> its known verdict
Command = Callable[[str, Path], Sequence[str]]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one reproduction.

    Attributes:
        name: its name.
        seconds: wall time, including the start of its process.
        verdicts: the verdicts by claim; empty if it failed.
        failure: the last line that it printed before it failed; empty if it did not fail.
        missing: the last line that it printed if it was skipped, because data are not on this machine.
        records: the claims of its record, by text.
        seeds: number of seeds.
    """

    name: str
    seconds: float
    verdicts: Mapping[str, str]
    failure: str = ""
    missing: str = ""
    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: int = 1

    def spreads(self, says: str, known: Verdicts) -> tuple[float | None, ...]:
        """The spreads of a claim's numbers over the seeds; with one seed, the known ones."""
        own_spreads = spreads_of(self.records[says], self.seeds) if says in self.records else ()
        return own_spreads or known.get((self.name, says), Known("")).spreads

    def differing_claims(self, known: Verdicts) -> tuple[list[str], list[str]]:
        """The claims with a worse verdict than the known one, and those that are worse or better but borderline.

        A borderline verdict is neither worse nor better: see ``is_borderline``.
        """
        worse, borderline = [], []
        for says, verdict in self.verdicts.items():
            previous = known.get((self.name, says), Known(verdict)).verdict
            if previous == verdict or NOT_DECIDED in (previous, verdict):
                continue
            spreads = self.spreads(says, known)
            if spreads and says in self.records and is_borderline(self.records[says], self.seeds, spreads):
                borderline.append(says)
            elif VERDICTS.index(verdict) > VERDICTS.index(previous):
                worse.append(says)
        return worse, borderline

    def line(self, known: Verdicts) -> str:
        """Name, seconds, the number of claims with each verdict, and the comparison; separated by tabs."""
        verdicts = list(self.verdicts.values())
        counts = ", ".join(f"{verdict} {verdicts.count(verdict)}" for verdict in (*VERDICTS, NOT_DECIDED)
                           if verdict in verdicts)
        worse, borderline = ([f"{says} (was: {known[self.name, says].verdict})" for says in claims]
                             for claims in self.differing_claims(known))
        new = sum((self.name, says) not in known for says in self.verdicts) if known else 0
        comparison = "; ".join([f"WORSE: {'; '.join(worse)}" if worse else "ok",
                                *([f"borderline: {'; '.join(borderline)}"] if borderline else [])])
        if self.failure:
            comparison = f"FAILED: {self.failure}"
        elif self.missing:
            comparison = f"skipped: no data: {self.missing}"
        elif new and not worse:
            comparison += f", {new} not known"
        return "\t".join((self.name, f"{self.seconds:.1f}", counts or "-", comparison))


def run_batch(names: Sequence[str], folder: Path, *, scale: str, jobs: int = 1,
              command: Command | None = None) -> Generator[Outcome, None, None]:
    """Run reproductions, ``jobs`` at a time, and yield the outcome of each when it is complete.

    Each runs in its own folder and its own process, so that one that fails does not affect the others. Its results are
    copied to ``folder``. The page of all results is written after the last one.

    Args:
        names: the reproductions.
        folder: the results folder.
        scale: ``paper``, ``middle`` or ``quick``.
        jobs: number of processes.
        command: the command that runs a reproduction of a name into a folder; default: ``python -m experiments``.

    Raises:
        InputError: ``jobs`` is less than 1, or the folder has a damaged JSON file.
    """
    if jobs < 1:
        raise InputError(f"jobs={jobs} must be at least 1")
    command = command or (lambda name, out: [sys.executable, "-m", "experiments", name, "--scale", scale, "--out",
                                             str(out)])
    folder.mkdir(parents=True, exist_ok=True)
    read_records(folder)  # the page at the end is made from them
    processes = _Processes()
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_run, name, folder, command, processes) for name in names]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            processes.terminate()
            pool.shutdown(cancel_futures=True)
    write_page(folder)


class _Processes:
    """The processes that run, so that none of them survives an interruption."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock, self._is_ended = threading.Lock(), False

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        with self._lock:
            if self._is_ended:
                return subprocess.CompletedProcess(command, 1, "", "interrupted before it began")
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       errors="backslashreplace", env={**os.environ, **_ENVIRONMENT})
            self._running.add(process)
        out, err = process.communicate()
        with self._lock:
            self._running.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def terminate(self) -> None:
        """Ask the processes that run to end, and start no other."""
        with self._lock:
            self._is_ended = True
            for process in self._running:
                process.terminate()


def _run(name: str, folder: Path, command: Command, processes: _Processes) -> Outcome:
    out, begin = folder / "runs" / name, time.perf_counter()
    remove_folder(out)  # the results of an earlier batch are not those of this one
    out.mkdir(parents=True)
    process = processes.run(command(name, out))
    seconds = time.perf_counter() - begin
    write_text(out / "log.txt", process.stdout + process.stderr)
    records = sorted(out.glob("*.json"))
    if process.returncode or not records:
        lines = [line.strip() for line in (process.stderr or process.stdout).splitlines() if line.strip()]
        message = lines[-1] if lines else f"exit code {process.returncode}, without a message"
        if process.returncode == NO_DATA:
            return Outcome(name, seconds, {}, missing=message)
        return Outcome(name, seconds, {}, message)
    record = read_record(records[0])
    for path in (*records, *out.glob("*.svg")):
        write_atomically(folder / path.name, lambda partial, path=path: copyfile(path, partial))  # type: ignore[misc]
    claims = {claim["says"]: claim for claim in record["claims"]}
    return Outcome(name, seconds, {says: claim["verdict"] for says, claim in claims.items()}, records=claims,
                   seeds=record["seeds"])


def write_summary(outcomes: Sequence[Outcome], path: Path, known: Verdicts | None = None) -> None:
    """Write a row for each claim: name, seconds of its reproduction, verdict, the spreads of its numbers, claim.

    A reproduction that failed or was skipped has one row with this as the verdict and its message as the claim. The
    spreads are separated by semicolons; a number that is not finite has an empty one. After one seed they are the known
    ones.
    """
    text = io.StringIO(newline="")
    rows = csv.writer(text, delimiter="\t", lineterminator="\n")
    rows.writerow(COLUMNS)
    for outcome in sorted(outcomes, key=lambda o: o.name):
        failed = (outcome.missing, _SKIPPED) if outcome.missing else (outcome.failure, _FAILED)
        for says, verdict in outcome.verdicts.items() or [failed]:
            spreads = ";".join("" if s is None else f"{s:g}" for s in outcome.spreads(says, known or {}))
            rows.writerow((outcome.name, f"{outcome.seconds:.0f}", verdict, spreads, says))
    write_text(path, text.getvalue())


def known_verdicts(path: Path) -> Verdicts:
    """The verdicts of a summary, or of the JSON files in a results folder.

    If a folder has both settings of a reproduction, the verdicts of the quick one are taken; and the spreads of the
    other, if the quick one has one seed.

    Raises:
        InputError: the path is neither, or a file is damaged.
    """
    if path.is_dir():
        records = sorted(read_records(path).values(), key=lambda r: bool(r["setting"] == "quick"))
        known: dict[tuple[str, str], Known] = {}
        for r in records:
            for c in r["claims"]:
                previous = known.get((r["name"], c["says"]), Known(""))
                known[r["name"], c["says"]] = Known(c["verdict"], spreads_of(c, r["seeds"]) or previous.spreads)
        return known
    if not path.is_file():
        raise InputError(f"there are no known verdicts at {path}: give a results folder, or the summary.tsv of an "
                         "earlier run")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            head, *rows = list(csv.reader(file, delimiter="\t")) or [[]]
    except (UnicodeError, csv.Error) as error:
        raise InputError(f"{path} is damaged: {shorten(error)}: give another summary") from error
    if tuple(head) != COLUMNS:
        raise InputError(f"{path} is not a summary: its columns must be {', '.join(COLUMNS)}")
    verdicts = (*VERDICTS, NOT_DECIDED)
    summary: dict[tuple[str, str], Known] = {}
    for number, row in enumerate(rows, start=2):
        try:
            name, _, verdict, spreads, claim = row
            if verdict not in (*verdicts, _FAILED, _SKIPPED):
                raise ValueError(verdict)
            numbers = tuple(float(s) if s else None for s in spreads.split(";")) if spreads else ()
        except ValueError as error:
            raise InputError(f"{path}: row {number} is damaged: a row must have {len(COLUMNS)} columns: the third is "
                             f"one of {', '.join((*verdicts, _FAILED, _SKIPPED))}; the fourth has numbers separated "
                             "by semicolons") from error
        if verdict in verdicts:
            summary[name, claim] = Known(verdict, numbers)
    return summary


def spreads_of(claim: Mapping[str, Any], seeds: int) -> tuple[float | None, ...]:
    """The standard deviation of each item over the seeds; empty if there is one seed."""
    return () if seeds < 2 else tuple(item["std"] for item in items_of(claim))


def run_all(names: Sequence[str], folder: Path, *, scale: str, jobs: int, against: Path | None) -> int:
    """Run reproductions, and print how their verdicts compare with known ones.

    It prints a line for each reproduction when it is complete: name, seconds, verdicts and the comparison with the
    known verdicts, separated by tabs. The results folder then also has ``summary.tsv`` with a row for each claim.

    Args:
        against: known verdicts, see ``known_verdicts``.

    Returns:
        The exit code: 1 if a reproduction failed or a verdict is worse than the known one; 4 if nothing failed but
        some reproductions were skipped, because their data are missing.
    """
    known = {} if against is None else known_verdicts(against)
    outcomes = []
    with closing(run_batch(names, folder, scale=scale, jobs=jobs)) as running:
        for outcome in running:
            outcomes.append(outcome)
            print(outcome.line(known), flush=True)
    write_summary(outcomes, folder / "summary.tsv", known)
    print(folder / "summary.tsv")
    if any(outcome.failure or outcome.differing_claims(known)[0] for outcome in outcomes):
        return FAILURE
    return NO_DATA if any(outcome.missing for outcome in outcomes) else 0
