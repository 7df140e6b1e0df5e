"""All reproductions, several at a time, each in a process of its own; and whether a verdict got worse."""

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
from resolvent.study.results import write_page

__all__ = ["COLUMNS", "Ran", "known_verdicts", "run_every", "write_summary"]

COLUMNS = ("name", "seconds", "verdict", "claim")
_ORDER = ("holds", "holds in part", "does not hold")  # the further on, the worse
Verdicts = Mapping[tuple[str, str], str]  # by name and claim
Command = Callable[[str, Path], Sequence[str]]


@dataclass(frozen=True)
class Ran:
    """One reproduction that was run.

    Attributes:
        name: its name.
        seconds: how long it took, with the start of its process.
        verdicts: by claim; empty where it failed.
        failure: the last line that it said before it failed; empty where it did not.
    """

    name: str
    seconds: float
    verdicts: Mapping[str, str]
    failure: str = ""

    def worse(self, known: Verdicts) -> list[str]:
        """The claims whose verdict is worse than the known one."""
        def rank(verdict: str) -> int:
            return _ORDER.index(verdict)
        return [says for says, verdict in self.verdicts.items()
                if rank(verdict) > rank(known.get((self.name, says), _ORDER[-1]))]

    def line(self, known: Verdicts) -> str:
        """Name, seconds, how many claims have which verdict, and what came of the comparison, apart by tabs."""
        found = list(self.verdicts.values())
        counts = ", ".join(f"{verdict} {found.count(verdict)}" for verdict in _ORDER if verdict in found)
        worse = [f"{says} (was: {known[self.name, says]})" for says in self.worse(known)]
        new = sum((self.name, says) not in known for says in self.verdicts) if known else 0
        came = (f"FAILED: {self.failure}" if self.failure else f"WORSE: {'; '.join(worse)}" if worse
                else f"ok, {new} not known" if new else "ok")
        return "\t".join((self.name, f"{self.seconds:.1f}", counts or "-", came))


def run_every(names: Sequence[str], folder: Path, *, quick: bool, jobs: int = 1,
              command: Command | None = None) -> Iterator[Ran]:
    """Run reproductions, ``jobs`` at a time, and say of each when it is done; what they write is put into ``folder``.

    A reproduction runs in a folder and a process of its own: none sees another's memory, and one that dies is a failure
    and no more. The page of all results is written when the last is done.

    Args:
        names: which.
        folder: for the results.
        quick: in the small setting.
        jobs: how many at a time.
        command: what runs the reproduction of that name into that folder; default: ``resolvent reproduce``.

    Raises:
        InputError: fewer than one at a time.
    """
    if jobs < 1:
        raise InputError(f"jobs={jobs} must be at least 1")
    again = [sys.executable, "-m", "resolvent.cli", "reproduce", *(["--quick"] if quick else [])]
    how = command or (lambda name, place: [*again, name, "--out", str(place)])
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(_run, name, folder, how) for name in names]
        try:
            for one in as_completed(running):
                yield one.result()
        finally:
            pool.shutdown(cancel_futures=True)
    write_page(folder)


def _run(name: str, folder: Path, command: Command) -> Ran:
    place, begin = folder / "runs" / name, time.perf_counter()
    place.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command(name, place), capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONUNBUFFERED": "1"})
    seconds = time.perf_counter() - begin
    (place / "log.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    found = sorted(place.glob("*.json"))
    if done.returncode or not found:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        return Ran(name, seconds, {}, said[-1] if said else f"exit code {done.returncode}, and not a word")
    for path in (*found, *place.glob("*.svg")):
        copyfile(path, folder / path.name)
    record = json.loads(found[0].read_text(encoding="utf-8"))
    return Ran(name, seconds, {claim["says"]: claim["verdict"] for claim in record["claims"]})


def write_summary(ran: Sequence[Ran], path: Path) -> None:
    """A row per claim: name, seconds of its reproduction, verdict (or ``failed``), claim; apart by tabs."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, delimiter="\t", lineterminator="\n")
        rows.writerow(COLUMNS)
        for one in sorted(ran, key=lambda r: r.name):
            for says, verdict in one.verdicts.items() or [(one.failure, "failed")]:
                rows.writerow((one.name, f"{one.seconds:.0f}", verdict, says))


def known_verdicts(path: Path) -> Verdicts:
    """The verdicts of a summary, or of the JSON files in a folder of results, the small setting's before the paper's.

    Raises:
        InputError: there is neither.
    """
    if path.is_dir():
        records = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(path.glob("*.json"))]
        records.sort(key=lambda r: bool(r["setting"] == "quick"))
        return {(r["name"], c["says"]): c["verdict"] for r in records for c in r["claims"]}
    if not path.is_file():
        raise InputError(f"there are no known verdicts at {path}: give a folder of results, or the summary.tsv of an "
                         "earlier run")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    if not rows or tuple(rows[0]) != COLUMNS:
        raise InputError(f"{path} is no summary: its columns must be {', '.join(COLUMNS)}")
    return {(row["name"], row["claim"]): row["verdict"] for row in rows if row["verdict"] in _ORDER}
