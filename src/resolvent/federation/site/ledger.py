"""What a site has answered about its tables, over all experiments: a record and a budget that survive restarts.

The ledger is a log with a line for each answer. The line is on the disk before the answer leaves, so that a kill loses
no answer; a message that arrives again finds its line and adds none, so that a kill counts none twice. It is no part
of a run's folder, so that neither a new run nor a removed one gives rounds back. Each line has the hash of the line and
of the chain before it, so that a line that was changed or removed is noticed. Only the last lines can be removed
without a trace: a copy elsewhere shows it.
"""

import csv
import fcntl
import hashlib
import io
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resolvent.data.files.digests import DamagedFileError
from resolvent.federation.protocol.limits import Usage
from resolvent.federation.protocol.refusals import Refusal, RefusalCode
from resolvent.federation.protocol.stores import append_to_log

FIELDS = ("time", "kind", "table", "lead", "plan", "run", "round", "phase", "message", "payload", "epsilon", "bytes",
          "chain")
"""The fields of the lines of a ledger, as columns of a table."""
_EARLIER_KIND = "round"  # of replies in ledgers of earlier versions, which have one line for a round


class Ledger:
    """The answers about the tables of a site.

    Args:
        table: path of the table, whose rounds are counted.
        lead: the lead of the plan to which new lines belong.
    """

    def __init__(self, path: Path, table: str = "", lead: str = "", plan: str = "") -> None:
        self.path, self.name, self._lead, self._plan = path, table, lead, plan
        self._size = -1
        self.entries: list[Mapping[str, Any]] = []
        self._read()

    def _read(self) -> None:
        content = self.path.read_bytes() if self.path.is_file() else b""
        if len(content) == self._size:
            return
        self.entries, self._size = [], len(content)
        for number, line in enumerate(content.splitlines(), 1):
            try:
                entry = json.loads(line)
            except ValueError:  # it was not completed, so that the answer has not left
                continue
            if not isinstance(entry, dict) or entry.get("chain") != _chain(self.head, entry):
                raise DamagedFileError(f"{self.path}:{number}: a line of the ledger was changed or removed here: "
                                       "compare it with a copy, and put it back")
            self.entries.append(entry)

    @property
    def head(self) -> str:
        """The hash of the whole ledger."""
        return str(self.entries[-1]["chain"]) if self.entries else ""

    def usage(self, *, lead: str | None = None, without: str = "") -> Usage:
        """What the site has answered about the table.

        Args:
            lead: only the plans of this lead; None: those of all.
            without: name of a run that is not counted.
        """
        entries = [entry for entry in self.entries if entry["table"] == self.name
                   and lead in (None, entry.get("lead")) and _job(entry) != without]
        replies = {(entry["run"], entry["round"], entry.get("phase", 0), entry["message"]) for entry in entries
                   if entry["kind"] in ("reply", _EARLIER_KIND)}
        epsilons = {entry["run"]: entry["epsilon"] for entry in entries if entry["kind"] == "epsilon"}
        answered = {run for run, *_ in replies}
        return Usage(
            len({(run, number) for run, number, *_ in replies}), len(replies),
            len({_job(entry) for entry in entries if entry["kind"] == "describe"}),
            len({(entry["run"], entry["round"], entry["message"]) for entry in entries if entry["kind"] == "scores"}),
            math.fsum(math.inf if (epsilon := epsilons.get(run)) is None else epsilon for run in answered))

    def used(self, lead: str, without: str = "") -> dict[tuple[str, str], Usage]:
        """(budget, who has used it) -> what is used of it, as ``Asked`` has it; see ``usage``."""
        return {("total", "all experiments"): self.usage(without=without),
                ("lead", f"the plans of {lead}"): self.usage(lead=lead, without=without)}

    @property
    def kinds(self) -> frozenset[tuple[str, str]]:
        """(kind, run of a method) of all lines."""
        return frozenset((str(entry["kind"]), str(entry.get("run", ""))) for entry in self.entries)

    def has(self, kind: str, **facts: Any) -> bool:
        """Whether an answer is in the ledger: the process was killed before it had answered, or the folder was lost.

        Args:
            facts: ``run``, ``round`` and ``phase``, the identity of the ``message`` that asks for it, and ``payload``,
                the SHA-256 of its arrays.

        Raises:
            Refusal: a later message of the run is answered, or this one with another payload.
        """
        position, asked = ("run", "round", "phase"), (facts["round"], facts["phase"])
        if any(entry["kind"] == kind and entry.get("run") == facts["run"]
               and (entry["round"], entry.get("phase", 0)) > asked for entry in self.entries):
            # The reply was stored, but the folder of the run is now an older copy or a new one: another reply to the
            # same message would have other noise, or, in a secure sum, the mask of the first reply.
            raise Refusal(RefusalCode.OLD, f"round {facts['round'] + 1} of {facts['run']}: a later one is answered")
        others = [entry for entry in self.entries if entry["kind"] == kind
                  and all(entry.get(name) == facts[name] for name in position)]
        if any(entry["payload"] != facts["payload"] for entry in others):
            raise Refusal(RefusalCode.PLAN, f"round {facts['round'] + 1} of {facts['run']} has been answered, and the "
                          "message has another payload")
        return any(entry["message"] == facts["message"] for entry in others)

    def append(self, kind: str, **facts: Any) -> None:
        """Write an answer to the ledger.

        Args:
            kind: ``reply``, ``scores``, ``epsilon``, or the kind of the request that is answered.

        Raises:
            OSError: the line cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(self.path):
            self._read()  # the process of an earlier job may have written
            entry = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "kind": kind, "table": self.name,
                     "lead": self._lead, "plan": self._plan, **facts}
            entry["chain"] = _chain(self.head, entry)
            self._size = append_to_log(self.path, entry)
            self.entries.append(entry)

    def compare(self, copy: "Ledger") -> str:
        """One sentence about an earlier copy of this ledger, such as that of an auditor."""
        if self.entries[:len(copy.entries)] == copy.entries:
            return f"the ledger continues the copy: {len(self.entries) - len(copy.entries)} lines are new"
        return "THE LEDGER DOES NOT CONTINUE THE COPY: lines of the copy are missing, or another ledger has replaced it"

    def summary(self) -> Iterator[str]:
        """Lines for a person: for each table, lead and run what was answered."""
        for table in self.tables:
            ledger = self.of_table(table)
            yield f"{table}: {_sentence(ledger.usage())} in all experiments"
            for lead in ledger.leads:
                yield f"  {lead or 'without a plan'}: {_sentence(ledger.usage(lead=lead))}"
            counts = Counter((_job(entry), str(entry["kind"])) for entry in self.entries if entry["table"] == table)
            for run in dict.fromkeys(run for run, _ in counts):
                kinds = ", ".join(f"{kind} {n}" for (of_run, kind), n in counts.items() if of_run == run)
                yield f"    {run or 'no run'}: {kinds}"
        yield f"{len(self.entries)} lines; the hash of all: {self.head or 'none'}"

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables about which the site has answered."""
        return tuple(dict.fromkeys(str(entry["table"]) for entry in self.entries))

    @property
    def leads(self) -> tuple[str, ...]:
        """The leads to whose plans the site has answered about the table; an empty name for answers without a plan."""
        return tuple(dict.fromkeys(entry.get("lead", "") for entry in self.entries if entry["table"] == self.name))

    def of_table(self, table: str) -> "Ledger":
        """The same ledger, whose usage is that of another table."""
        return Ledger(self.path, table)

    def table(self) -> str:
        """The ledger as text in the CSV format."""
        text = io.StringIO()
        writer = csv.DictWriter(text, FIELDS, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.entries)
        return text.getvalue()


def _job(entry: Mapping[str, Any]) -> str:
    """The run of a line; the lines of its methods have names that begin with it."""
    return str(entry.get("run", "")).partition("/")[0]


def _sentence(usage: Usage) -> str:
    epsilon = "without a bound" if math.isinf(usage.epsilon) else f"{usage.epsilon:.3g}"
    return (f"{usage.rounds} rounds, {usage.replies} replies, {usage.jobs} jobs, {usage.scores} evaluations"
            f"{f', epsilon {epsilon}' if usage.rounds else ''}")


def _chain(head: str, entry: Mapping[str, Any]) -> str:
    content = {name: value for name, value in entry.items() if name != "chain"}
    return hashlib.sha256(f"{head}{json.dumps(content, sort_keys=True)}".encode()).hexdigest()


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold a lock of all processes; the operating system releases it when a process ends."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
