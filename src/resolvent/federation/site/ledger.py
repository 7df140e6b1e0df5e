"""What a site has answered about its tables, over all experiments: a record and a budget that survive restarts.

The ledger is a log with a line for each answer. The line is on the disk before the answer leaves. It is no part of a
run's folder, so that neither a new run nor a removed one gives rounds back. Each line has the hash of the line and of
the chain before it, so that a line that was changed or removed is noticed. Only the last lines can be removed without a
trace: a copy elsewhere shows it.
"""

import csv
import fcntl
import hashlib
import io
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resolvent.data.files.digests import DamagedFileError
from resolvent.federation.protocol.stores import append_to_log

__all__ = ["Ledger"]

_FIELDS = ("time", "kind", "table", "lead", "plan", "run", "round", "message", "bytes", "chain")


class Ledger:
    """The answers about the tables of a site.

    Args:
        path: the file of the ledger.
        table: path of the table, whose rounds are counted.

    Raises:
        DamagedFileError: a line was changed or removed.
    """

    def __init__(self, path: Path, table: str = "") -> None:
        self._path, self._table = path, table
        self._size = -1
        self.entries: list[Mapping[str, Any]] = []
        self._read()

    def _read(self) -> None:
        content = self._path.read_bytes() if self._path.is_file() else b""
        if len(content) == self._size:
            return
        self.entries, self._size = [], len(content)
        for number, line in enumerate(content.splitlines(), 1):
            try:
                entry = json.loads(line)
            except ValueError:  # it was not completed, so that the answer has not left
                continue
            if not isinstance(entry, dict) or entry.get("chain") != _chain(self.head, entry):
                raise DamagedFileError(f"{self._path}:{number}: a line of the ledger was changed or removed here: "
                                       "compare it with a copy, and put it back")
            self.entries.append(entry)

    @property
    def head(self) -> str:
        """The hash of the whole ledger."""
        return str(self.entries[-1]["chain"]) if self.entries else ""

    @property
    def _rounds(self) -> set[tuple[str, int, str]]:
        return {(entry["run"], entry["round"], entry["message"]) for entry in self.entries
                if entry["kind"] == "round" and entry["table"] == self._table}

    @property
    def used(self) -> int:
        """Number of rounds in which the site has answered about the table."""
        return len(self._rounds)

    def used_by(self, run: str) -> int:
        """Number of these rounds in the methods of a run."""
        return sum(name.partition("/")[0] == run for name, _, _ in self._rounds)

    def has(self, run: str, number: int, message: str) -> bool:
        """Whether a round is in the ledger: the process was killed before it had answered."""
        return (run, number, message) in self._rounds

    def add(self, run: str, number: int, message: str) -> None:
        """Write a round to the ledger.

        Args:
            run: the run of a method.
            number: number of the round.
            message: identity of the message that asks for it.

        Raises:
            OSError: the line cannot be written.
        """
        self.append("round", run=run, round=number, message=message)

    def append(self, kind: str, **facts: Any) -> None:
        """Write an answer to the ledger.

        Args:
            kind: ``round``, or the kind of the request that is answered.
            facts: further fields.

        Raises:
            OSError: the line cannot be written.
            DamagedFileError: a line was changed or removed.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(self._path):
            self._read()  # the process of an earlier job may have written
            entry = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "kind": kind, "table": self._table,
                     **facts}
            entry["chain"] = _chain(self.head, entry)
            self._size = append_to_log(self._path, entry)
            self.entries.append(entry)

    def compare(self, copy: "Ledger") -> str:
        """One sentence about an earlier copy of this ledger, such as that of an auditor."""
        if self.entries[:len(copy.entries)] == copy.entries:
            return f"the ledger continues the copy: {len(self.entries) - len(copy.entries)} lines are new"
        return "THE LEDGER DOES NOT CONTINUE THE COPY: lines of the copy are missing, or another ledger has replaced it"

    def summary(self) -> Iterator[str]:
        """Lines for a person: for each table and run the number of answers of each kind."""
        counts = Counter((entry["table"], str(entry.get("run", "")).partition("/")[0], str(entry["kind"]))
                         for entry in self.entries)
        for table in dict.fromkeys(table for table, _, _ in counts):
            rounds = sum(n for (of_table, _, kind), n in counts.items() if of_table == table and kind == "round")
            yield f"{table}: {rounds} rounds in all experiments"
            for run in dict.fromkeys(run for of_table, run, _ in counts if of_table == table):
                kinds = ", ".join(f"{kind} {n}" for (of_table, of_run, kind), n in counts.items()
                                  if (of_table, of_run) == (table, run))
                yield f"  {run}: {kinds}"
        yield f"{len(self.entries)} lines; the hash of all: {self.head or 'none'}"

    def table(self) -> str:
        """The ledger as text in the CSV format."""
        text = io.StringIO()
        writer = csv.DictWriter(text, _FIELDS, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.entries)
        return text.getvalue()


def _chain(head: str, entry: Mapping[str, Any]) -> str:
    content = {name: value for name, value in entry.items() if name != "chain"}
    return hashlib.sha256(f"{head}{json.dumps(content, sort_keys=True)}".encode()).hexdigest()


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold a lock of all processes; the operating system releases it when a process ends."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
