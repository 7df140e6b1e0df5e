"""Several reproductions at a time, each in its own process, and the comparison of their verdicts with known ones."""

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile

from resolvent.errors import InputError
from resolvent.study.reproductions.claims import VERDICTS
from resolvent.study.reproductions.results import write_page

__all__ = ["COLUMNS", "Outcome", "known_verdicts", "run_batch", "write_summary"]

COLUMNS = ("name", "seconds", "verdict", "claim")
Verdicts = Mapping[tuple[str, str], str]  # (name, claim) -> verdict
Command = Callable[[str, Path], Sequence[str]]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one reproduction.

    Attributes:
        name: its name.
        seconds: wall time, including the start of its process.
        verdicts: the verdicts by claim; empty if it failed.
        failure: the last line that it printed before it failed; empty if it did not fail.
    """

    name: str
    seconds: float
    verdicts: Mapping[str, str]
    failure: str = ""

    def worse_claims(self, known: Verdicts) -> list[str]:
        """The claims with a worse verdict than the known one."""
        return [says for says, verdict in self.verdicts.items()
                if VERDICTS.index(verdict) > VERDICTS.index(known.get((self.name, says), VERDICTS[-1]))]

    def line(self, known: Verdicts) -> str:
        """Name, seconds, the number of claims with each verdict, and the comparison; separated by tabs."""
        verdicts = list(self.verdicts.values())
        counts = ", ".join(f"{verdict} {verdicts.count(verdict)}" for verdict in VERDICTS if verdict in verdicts)
        worse = [f"{says} (was: {known[self.name, says]})" for says in self.worse_claims(known)]
        new = sum((self.name, says) not in known for says in self.verdicts) if known else 0
        comparison = (f"FAILED: {self.failure}" if self.failure else f"WORSE: {'; '.join(worse)}" if worse
                      else f"ok, {new} not known" if new else "ok")
        return "\t".join((self.name, f"{self.seconds:.1f}", counts or "-", comparison))


def run_batch(names: Sequence[str], folder: Path, *, quick: bool, jobs: int = 1,
              command: Command | None = None) -> Iterator[Outcome]:
    """Run reproductions, ``jobs`` at a time, and yield the outcome of each when it is complete.

    Each runs in its own folder and its own process, so that one that fails does not affect the others. Its results are
    copied to ``folder``. The page of all results is written after the last one.

    Args:
        names: the reproductions.
        folder: the results folder.
        quick: whether they run in the quick setting.
        jobs: number of processes.
        command: the command that runs a reproduction of a name into a folder; default: ``resolvent reproduce``.

    Raises:
        InputError: ``jobs`` is less than 1.
    """
    if jobs < 1:
        raise InputError(f"jobs={jobs} must be at least 1")
    reproduce = [sys.executable, "-m", "resolvent.cli", "reproduce", *(["--quick"] if quick else [])]
    command = command or (lambda name, out: [*reproduce, name, "--out", str(out)])
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_run, name, folder, command) for name in names]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)
    write_page(folder)


def _run(name: str, folder: Path, command: Command) -> Outcome:
    out, begin = folder / "runs" / name, time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    process = subprocess.run(command(name, out), capture_output=True, text=True, check=False,
                             env={**os.environ, "PYTHONUNBUFFERED": "1"})
    seconds = time.perf_counter() - begin
    (out / "log.txt").write_text(process.stdout + process.stderr, encoding="utf-8")
    records = sorted(out.glob("*.json"))
    if process.returncode or not records:
        lines = [line.strip() for line in (process.stderr or process.stdout).splitlines() if line.strip()]
        return Outcome(name, seconds, {}, lines[-1] if lines else f"exit code {process.returncode}, without a message")
    for path in (*records, *out.glob("*.svg")):
        copyfile(path, folder / path.name)
    record = json.loads(records[0].read_text(encoding="utf-8"))
    return Outcome(name, seconds, {claim["says"]: claim["verdict"] for claim in record["claims"]})


def write_summary(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write a row for each claim: name, seconds of its reproduction, verdict (or ``failed``), claim."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, delimiter="\t", lineterminator="\n")
        rows.writerow(COLUMNS)
        for outcome in sorted(outcomes, key=lambda o: o.name):
            for says, verdict in outcome.verdicts.items() or [(outcome.failure, "failed")]:
                rows.writerow((outcome.name, f"{outcome.seconds:.0f}", verdict, says))


def known_verdicts(path: Path) -> Verdicts:
    """The verdicts of a summary, or of the JSON files in a results folder.

    If a folder has both settings of a reproduction, the verdicts of the quick one are taken.

    Raises:
        InputError: the path is neither.
    """
    if path.is_dir():
        records = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(path.glob("*.json"))]
        records.sort(key=lambda r: bool(r["setting"] == "quick"))
        return {(r["name"], c["says"]): c["verdict"] for r in records for c in r["claims"]}
    if not path.is_file():
        raise InputError(f"there are no known verdicts at {path}: give a results folder, or the summary.tsv of an "
                         "earlier run")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    if not rows or tuple(rows[0]) != COLUMNS:
        raise InputError(f"{path} is not a summary: its columns must be {', '.join(COLUMNS)}")
    return {(row["name"], row["claim"]): row["verdict"] for row in rows if row["verdict"] in VERDICTS}
