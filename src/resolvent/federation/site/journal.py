"""The journal of a site: everything that it has answered, counted, received and decided, in one file.

The journal is append-only, in an SQLite file of the site's folder. An entry is a mapping of plain values with a kind.
It is on the disk before the answer leaves, so that a kill loses no answer; a message that arrives again finds its
entry and adds none, so that a kill counts none twice. It is no part of a run's folder, so that neither a new run nor a
removed one gives rounds back.

Each entry has the keyed digest of its content and of the entry before it. So a bit that was changed, an entry that was
changed, removed, swapped or added, and the journal of another site are noticed. An older copy of the whole file has a
whole chain: it is noticed beside a newer run, whose folder has the head that the journal had (``check_runs``), beside
the stored reply of a party, and by whoever keeps the head elsewhere, such as the lead (``continues``).

What is too large for an entry, such as the rows of a version, is a file beside the journal, whose digest is an entry
(``write_file``): a changed, an older or a missing file is noticed (``has_file``).

**How a plan writes to it.** ``PlanRun`` has the site's journal as ``self._journal``. ``append("my kind", **facts)``
adds an entry with plain values, ``of("my kind", **facts)`` finds the entries with these facts, the oldest first, and
``latest`` the last one. Each entry also has ``rows``, the digest of the rows that it is about: the site's budgets
belong to the rows, whatever the file, the run or the plan is called, and so should what a guard remembers:

.. code-block:: python

    before = journal.latest("span", rows=journal.rows)
    journal.append("span", columns=names, rank=rank, leverage=largest)

Entries stay for ever. They are read into memory once, so store numbers and digests, and no arrays of rows.
"""

import csv
import hashlib
import hmac
import io
import json
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from resolvent.data.files.atomic_files import hidden_sibling, sync_to_disk, write_atomically, write_text
from resolvent.data.files.digests import DamagedFileError, check_files, file_digest, file_digests
from resolvent.errors import InputError
from resolvent.federation.protocol.limits import Usage
from resolvent.federation.protocol.refusals import Refusal, RefusalCode
from resolvent.federation.protocol.stores import stored_secret

FIELDS = ("time", "kind", "table", "rows", "lead", "plan", "run", "round", "phase", "message", "payload", "epsilon",
          "rank", "leverage", "bytes", "sha256", "digest")
"""The fields of the entries about answers, as columns of a table."""
_HEAD_FILE, _KEY_BYTES = "journal.head", 32
_WAIT_SECONDS = 60.0  # for the process of an earlier job
_OF_DISK = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY,
                      sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM})
_TABLE = "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, content TEXT NOT NULL, digest TEXT NOT NULL)"


class Journal:
    """The journal of a site.

    Args:
        path: the file; beside it is its key.
        rows: the digest of the rows about which new entries are, and whose usage is counted.
        table: the file of these rows, for people.
        lead: the lead of the plan to which new entries belong.
    """

    def __init__(self, path: Path, rows: str = "", lead: str = "", plan: str = "", table: str = "") -> None:
        self.path, self.rows, self.table, self._lead, self._plan = path, rows, table, lead, plan
        self.entries: list[Mapping[str, Any]] = []
        if (earlier := path.with_name("ledger.jsonl")).exists():
            raise InputError(f"{earlier} is the ledger of an earlier version, which counts on in no other one: finish "
                             "its runs with that version, then move the file away, which begins the budgets anew")
        self._read()

    def _read(self) -> None:
        """Read the entries that are new, and check them."""
        if self.path.is_file() and self.path.stat().st_size:  # otherwise nothing was answered, see check_runs
            with self._opened() as database:
                self._read_new(database)

    def _read_new(self, database: sqlite3.Connection) -> None:
        found = database.execute("SELECT number, content, digest FROM entries WHERE number > ? ORDER BY number",
                                 (len(self.entries),)).fetchall()
        key = self._key if found else b""
        for number, content, digest in found:
            if number != len(self.entries) + 1 or digest != _digest(key, self.head, content):
                raise DamagedFileError(f"{self.path}: entry {len(self.entries) + 1} of the journal was changed or "
                                       "removed here: put an unchanged copy back")
            self.entries.append({**json.loads(content), "digest": digest})

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, _WAIT_SECONDS, isolation_level=None)) as database:
                database.execute("PRAGMA synchronous = FULL")
                yield database
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_DISK:  # without the bits that say more
                raise OSError(f"{self.path}: {error}") from error
            raise DamagedFileError(f"{self.path} was changed or cut off: put an unchanged copy back") from error
        except UnicodeDecodeError as error:  # in a name within the file, which SQLite quotes
            raise DamagedFileError(f"{self.path} was changed: put an unchanged copy back") from error

    @property
    def _key(self) -> bytes:
        return stored_secret(self.path.with_suffix(".key"), _KEY_BYTES)

    @property
    def head(self) -> str:
        """The digest of the last entry, which is one of the whole journal."""
        return str(self.entries[-1]["digest"]) if self.entries else ""

    def append(self, kind: str, **facts: Any) -> None:
        """Write an entry; it is on the disk when the call returns.

        Args:
            kind: ``reply``, ``scores``, ``epsilon``, the kind of the request that is answered, ``sent reply`` and the
                like for what leaves, or a guard's own.
            facts: plain values; without ``rows``, ``lead`` or ``plan``, the journal's own are written.

        Raises:
            OSError: the entry cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        key = self._key
        with self._opened() as database:
            database.execute(_TABLE)
            database.execute("BEGIN IMMEDIATE")
            self._read_new(database)  # the process of an earlier job may have written
            entry = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "kind": kind, "table": self.table,
                     "rows": self.rows, "lead": self._lead, "plan": self._plan, **facts}
            content = json.dumps(entry, allow_nan=False)
            digest = _digest(key, self.head, content)
            database.execute("INSERT INTO entries VALUES (?, ?, ?)", (len(self.entries) + 1, content, digest))
            database.execute("COMMIT")
            self.entries.append({**json.loads(content), "digest": digest})

    def of(self, kind: str, **facts: Any) -> list[Mapping[str, Any]]:
        """The entries of a kind that have these facts, the oldest first."""
        self._read()
        return [entry for entry in self.entries if entry["kind"] == kind
                and all(entry.get(name) == value for name, value in facts.items())]

    def latest(self, kind: str, **facts: Any) -> Mapping[str, Any] | None:
        """The last entry of a kind that has these facts."""
        return next(reversed(self.of(kind, **facts)), None)

    def usage(self, *, lead: str | None = None, without: str = "") -> Usage:
        """What the site has answered about the rows.

        Args:
            lead: only the plans of this lead; None: all plans.
            without: digest of a plan that is not counted.
        """
        entries = [entry for entry in self.entries if entry["rows"] == self.rows
                   and lead in (None, entry["lead"]) and (not without or entry["plan"] != without)]
        replies = {(entry["run"], entry["round"], entry["phase"], entry["message"]) for entry in entries
                   if entry["kind"] == "reply"}
        epsilons = {entry["run"]: entry["epsilon"] for entry in entries if entry["kind"] == "epsilon"}
        answered = {run for run, *_ in replies}
        return Usage(
            len({(run, number) for run, number, *_ in replies}), len(replies),
            len({(_job(entry), entry["plan"]) for entry in entries if entry["kind"] == "describe"}),
            len({(entry["run"], entry["round"], entry["message"]) for entry in entries if entry["kind"] == "scores"}),
            math.fsum(math.inf if (epsilon := epsilons.get(run)) is None else epsilon for run in answered),
            len({entry["plan"] for entry in entries if entry["kind"] == "refused"}))

    def used(self, lead: str, without: str = "") -> dict[tuple[str, str], Usage]:
        """(budget, who has used it) -> what is used of it, as ``Asked`` has it; see ``usage``."""
        return {("total", "all experiments"): self.usage(without=without),
                ("lead", f"the plans of {lead}"): self.usage(lead=lead, without=without)}

    def has(self, kind: str, **facts: Any) -> bool:
        """Whether an answer is in the journal: the process was killed before it had answered, or the folder was lost.

        Args:
            facts: ``run``, ``round`` and ``phase``, the identity of the ``message`` that asks for it, and ``payload``,
                the SHA-256 of its arrays.

        Raises:
            Refusal: a later message of the run is answered, or this one with another payload.
        """
        asked = (facts["round"], facts["phase"])
        answered = self.of(kind, run=facts["run"])
        if any((entry["round"], entry["phase"]) > asked for entry in answered):
            # The reply was stored, but the folder of the run is now an older copy or a new one: another reply to the
            # same message would have other noise, or, in a secure sum, the mask of the first reply.
            raise Refusal(RefusalCode.OLD, f"round {facts['round'] + 1} of {facts['run']}: a later one is answered")
        others = [entry for entry in answered if (entry["round"], entry["phase"]) == asked]
        if any(entry["payload"] != facts["payload"] for entry in others):
            raise Refusal(RefusalCode.PLAN, f"round {facts['round'] + 1} of {facts['run']} has been answered, and the "
                          "message has another payload")
        return any(entry["message"] == facts["message"] for entry in others)

    def write_file(self, path: Path, write: Callable[[Path], object]) -> None:
        """Write a file whose digest is in the journal before the file has its name; a kill leaves either file whole.

        Args:
            write: writes to the path that it gets.
        """
        new = hidden_sibling(path, "new")
        write_atomically(new, write)
        self.append("file", file=path.name, sha256=file_digest(new))
        new.replace(path)
        sync_to_disk(path.parent)

    def has_file(self, path: Path) -> bool:
        """Whether a file was written, which is then there as it was written last.

        Raises:
            DamagedFileError: it was changed, removed, added or replaced by an older copy.
        """
        entry, new = self.latest("file", file=path.name), hidden_sibling(path, "new")
        expected = "" if entry is None else entry["sha256"]
        if new.is_file() and file_digest(new) == expected:
            new.replace(path)  # after a kill
        if (file_digest(path) if path.is_file() else "") != expected:
            raise DamagedFileError(f"{path} was changed, removed, or replaced by another copy than the newest: put "
                                   "this one back")
        return entry is not None

    def check_reply(self, run: str, number: int, phase: int) -> None:
        """Check that the journal has the reply that a party has stored: otherwise an older copy has replaced it."""
        if not self.of("reply", run=run, round=number, phase=phase):
            raise DamagedFileError(f"{self.path} is older than round {number + 1} of {run}, which the site has "
                                   "answered: put the newest copy back")

    def mark(self, folder: Path) -> None:
        """Write the head into the folder of a run, from which ``check_runs`` sees an older journal."""
        if folder.is_dir():
            write_text(folder / _HEAD_FILE, self.head)

    def check_runs(self) -> None:
        """Check that the journal is not older than the runs beside it.

        Raises:
            DamagedFileError: a run has a head that is none of this journal.
        """
        for path in sorted(self.path.parent.glob(f"*/{_HEAD_FILE}")):
            if not self.continues(path.read_text("utf-8")):
                raise DamagedFileError(f"{self.path} is older than the run {path.parent.name}, or another journal has "
                                       "replaced it: put the newest copy back")

    def check_files(self) -> Iterator[str]:
        """Check the files of each finished run that is still there; yields a line for each.

        Raises:
            DamagedFileError: a file is not the one with which the run ended.
        """
        for run, files in {entry["run"]: entry["files"] for entry in self.of("finish") if "files" in entry}.items():
            if (folder := self.path.parent / run).is_dir():
                check_files(folder, files, "it was changed, or a later command, such as calibrate, has written it")
                yield f"{run}: its {len(files)} files are those with which it ended"

    def continues(self, head: str) -> bool:
        """Whether this journal had the head before, such as the head of a copy, or one that a lead was told."""
        return not head or any(entry["digest"] == head for entry in self.entries)

    def summary(self) -> Iterator[str]:
        """Lines for a person: for each set of rows, lead and run what was answered."""
        for rows, table in self.tables.items():
            journal = self.about(rows)
            yield f"{table}: {_sentence(journal.usage())} in all experiments"
            for lead in journal.leads:
                yield f"  {lead or 'without a plan'}: {_sentence(journal.usage(lead=lead))}"
            counts = Counter((_job(entry), str(entry["kind"])) for entry in self.entries
                             if entry["rows"] == rows and _job(entry))
            sizes = Counter[str]()
            for entry in self.entries:
                sizes[_job(entry)] += entry.get("bytes", 0) if entry["rows"] == rows else 0
            for run in dict.fromkeys(run for run, _ in counts):
                kinds = ", ".join(f"{kind} {n}" for (of_run, kind), n in counts.items() if of_run == run)
                yield f"    {run}: {kinds}; {sizes[run]} bytes have left the site"
        yield f"{len(self.entries)} entries; the digest of all: {self.head or 'none'}"

    @property
    def tables(self) -> dict[str, str]:
        """Digest of rows about which the site has answered -> their table, by its last name."""
        return {str(entry["rows"]): str(entry["table"]) for entry in self.entries if entry["rows"]}

    @property
    def leads(self) -> tuple[str, ...]:
        """The leads to whose plans the site has answered about the rows; an empty name for answers without a plan."""
        return tuple(dict.fromkeys(str(entry["lead"]) for entry in self.entries
                                   if entry["rows"] == self.rows and entry["kind"] != "answer"))

    def about(self, rows: str) -> "Journal":
        """The same journal, with the usage of other rows."""
        return Journal(self.path, rows)

    def csv_text(self) -> str:
        """The entries as text in the CSV format."""
        text = io.StringIO()
        writer = csv.DictWriter(text, FIELDS, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.entries)
        return text.getvalue()

    def page(self, site: str) -> str:
        """The journal as one file for a browser, without scripts and outside resources. All values are escaped."""
        from resolvent.comparisons.page_text import page_text  # here: a site that answers makes no page

        about = [(table, self.about(rows)) for rows, table in self.tables.items()]
        tables = [(table, of.usage(), [(lead, of.usage(lead=lead)) for lead in of.leads]) for table, of in about]
        return page_text("ledger", package="resolvent.federation", site=site, journal=self, tables=tables,
                         fields=[field for field in FIELDS if field != "table"], infinity=math.inf,
                         digests=("plan", "message", "payload", "sha256", "digest", "rows"))


def digests_of_run(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 of the files of a run, without locks and without the head of the journal."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("[!.]*") if path.is_file())
    return file_digests(folder, sorted({*names} - {_HEAD_FILE}))


def head_of(path: Path) -> str:
    """The head of a copy of a journal, whose chain is not checked: it is looked for in the journal itself.

    Raises:
        InputError: the file is no journal.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute("SELECT digest FROM entries ORDER BY number DESC LIMIT 1").fetchone()
    except sqlite3.Error as error:
        raise InputError(f"{path} is no journal of a site ({error}): name a copy of journal.sqlite") from error
    return "" if found is None else str(found[0])


def _job(entry: Mapping[str, Any]) -> str:
    """The run of an entry; the entries of its methods have names that begin with it."""
    return str(entry.get("run", "")).partition("/")[0]


def _sentence(usage: Usage) -> str:
    epsilon = "without a bound" if math.isinf(usage.epsilon) else f"{usage.epsilon:.3g}"
    return (f"{usage.rounds} rounds, {usage.replies} replies, {usage.jobs} jobs, {usage.scores} evaluations"
            f"{f', epsilon {epsilon}' if usage.rounds else ''}")


def _digest(key: bytes, head: str, content: str) -> str:
    return hmac.new(key, f"{head}{content}".encode(), hashlib.sha256).hexdigest()
