"""The files of the server and of a party: written completely or not at all, with a checksum, and locked by one process.

A record is one file in the wire format. It is written to a temporary file, synchronised and renamed, so that a kill or
a power failure leaves either the previous record or the new one. A log has a JSON object in each line. The server's
record contains the length of the log at the time of writing; later lines are removed when a run is resumed.
"""

import contextlib
import json
import mmap
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from jaxtyping import PyTree

from resolvent.algorithms.algorithm import PartyState, ServerState
from resolvent.algorithms.round import commit_party
from resolvent.data.files.atomic_files import sync_to_disk, write_bytes, write_secret, write_text
from resolvent.data.files.digests import DamagedFileError
from resolvent.data.files.folder_lock import locked
from resolvent.errors import InputError
from resolvent.federation.protocol.refusals import Refusal, RefusalCode
from resolvent.federation.protocol.wire import Message, WireError, arrays_of, decode, encode_parts, restore_tree
from resolvent.math.tree import Vector

__all__ = ["PartyRecord", "PartyStore", "ServerRecord", "ServerStore", "StoredAnswers", "append_to_log",
           "stored_secret"]

_LARGEST_FILE = 2**50  # bytes; a local record may be larger than a message


class PartyRecord(NamedTuple):
    """What a party stores of a run.

    Attributes:
        run: the run.
        start: identity of the message with which it started.
        committed: the party's state before the last work; at the end of the run, its last state.
        round: round of the last work; -1 before the first.
        phase: phase of the last work.
        message: identity of the message that asked for it.
        pending: the state after the last work; it is committed if the server says that the reply counted. None before
            the first work.
        number: number of the party, with which its random keys are derived.
    """

    run: str
    start: str
    committed: PartyState
    round: int = -1
    phase: int = 0
    message: str = ""
    pending: PartyState | None = None
    number: int = 0

    def settled(self, counted: tuple[int, int] | None, refused: tuple[int, int] | None) -> PartyState:
        """The party's state, given which of its replies counted.

        If the last reply counted, it is the state after the work. If the reply was refused, only the ``Private`` parts
        are those after the work. If the reply did not arrive in time, it is the state before the work.

        Args:
            counted: (round, phase) of the last reply of this party that counted.
            refused: (round, phase) of its last reply that arrived and did not count.
        """
        position = (self.round, self.phase)
        if self.pending is None or position not in (counted, refused):
            return self.committed
        return commit_party(self.pending, self.committed, counted=position == counted)


class ServerRecord(NamedTuple):
    """What the server stores of a run.

    Attributes:
        run: the run.
        parties: names of the parties.
        identity: part of the run -> its SHA-256; a run continues only with the same parts.
        sizes: [N] number of training samples of each party.
        splits: names of the sample sets.
        split_sizes: [splits, N] number of samples.
        score: name of the score.
        state: the server's state.
        round: the next round.
        phase: the next phase.
        working: ids of the parties that take part in the next phase; None at the beginning of a round.
        counted: party id -> (round, phase) of its last reply that counted.
        refused: party id -> (round, phase) of its last reply that arrived and did not count.
        unanswered: party id -> round of the message that it has still to answer; with asynchronous servers.
        members: (first round, ids of the parties that are asked from this round on), in the order of the rounds.
        evaluated: the number of rounds after which the last evaluation was made; -1 before the first evaluation.
        restarted: ids of parties that lost their state and restarted.
        excluded: ids of parties that are no longer asked, because they lost their state.
        protected: ids of parties that clip their replies or add noise.
        protects: whether the server draws cohorts and noise from its own secret, and not from the seed.
        log_bytes: length of the log up to this record.
        bytes_down: bytes of all messages to parties.
        bytes_up: bytes of all replies.
    """

    run: str
    parties: tuple[str, ...]
    identity: Mapping[str, str]
    sizes: tuple[int, ...]
    splits: tuple[str, ...]
    split_sizes: tuple[tuple[int, ...], ...]
    score: str
    state: ServerState
    round: int = 0
    phase: int = 0
    working: tuple[int, ...] | None = None
    counted: Mapping[int, tuple[int, int]] = {}
    refused: Mapping[int, tuple[int, int]] = {}
    unanswered: Mapping[int, int] = {}
    members: tuple[tuple[int, tuple[int, ...]], ...] = ()
    evaluated: int = -1
    restarted: tuple[int, ...] = ()
    excluded: tuple[int, ...] = ()
    protected: tuple[int, ...] = ()
    protects: bool = False
    log_bytes: int = 0
    bytes_down: int = 0
    bytes_up: int = 0


def append_to_log(path: Path, entry: Mapping[str, Any]) -> int:
    """Append an entry to a log as a line of JSON, and return the length of the log. The entry is then on the disk.

    An earlier line that was not completed, on a full disk, stays on a line of its own.

    Raises:
        OSError: the entry cannot be written.
    """
    line = json.dumps(dict(entry), allow_nan=False).encode() + b"\n"
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def stored_secret(path: Path, length: int) -> bytes:
    """Random bytes of the operating system, in a file that only its owner can read; it is made if it is absent."""
    if not path.exists():
        write_secret(path, secrets.token_bytes(length))
    return path.read_bytes()


class _Store:
    """A folder that one process uses at a time, with a record.

    Args:
        folder: the folder; it is made if it does not exist.

    Raises:
        RunningError: another process uses the folder.
    """

    _record_name: str

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._exit = contextlib.ExitStack()
        self._exit.enter_context(locked(self.folder, "choose another folder"))
        self.folder.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Release the lock."""
        self._exit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def write_file(self, name: str, message: Message, **trees: PyTree[Any]) -> None:
        """Write a message, with the arrays of some trees, into a file of the folder, completely or not at all.

        Raises:
            OSError: it cannot be written, such as on a full disk; the previous file is unchanged.
        """
        arrays = {**message.arrays}
        for title, tree in trees.items():
            arrays |= arrays_of(tree, f"{title}.")
        write_bytes(self.folder / name, encode_parts(replace(message, arrays=arrays)))

    def read_file(self, name: str) -> Message | None:
        """The message of ``write_file``; None if there is none. A damaged file raises a ``DamagedFileError``."""
        return _read_message(self.folder / name)

    def _read_record(self) -> Message | None:
        return self.read_file(self._record_name)

    def _restore(self, message: Message, title: str, like: PyTree[Any]) -> PyTree[Any]:
        prefix = f"{title}."
        arrays = {name.removeprefix(prefix): array for name, array in message.arrays.items() if name.startswith(prefix)}
        try:
            return jax.tree.map(jax.numpy.asarray, restore_tree(arrays, like))
        except WireError as error:
            raise InputError(f"{self.folder / self._record_name} is of another algorithm or model: {error}") from error


class PartyStore(_Store):
    """A party's folder for one run: its record, and its models at the end."""

    _record_name = "party.record"
    _MODELS = "models.safetensors"

    def read(self, like: PartyState) -> PartyRecord | None:
        """The record, or None if the party has not started.

        Args:
            like: a party state, or its shapes.

        Raises:
            InputError: the record is damaged, or of another algorithm.
        """
        if (message := self._read_record()) is None:
            return None
        has_pending = message.fact("has_pending", bool)
        return PartyRecord(
            message.run, message.fact("start", str), self._restore(message, "committed", like),
            message.round - 1, message.phase, message.fact("message", str),
            self._restore(message, "pending", like) if has_pending else None, message.fact("number", int))

    def read_reply(self) -> bytes:
        """The reply that was written with the record; it stays on the disk, because it can be as large as a model."""
        message = self._read_record()
        if message is None:
            raise DamagedFileError(f"{self.folder / self._record_name} is missing: it was there before")
        return message.arrays["reply"].tobytes()

    def write(self, record: PartyRecord, reply: bytes) -> PartyRecord:
        """Write the record, and the reply to the last message; returns the record.

        Raises:
            OSError: it cannot be written; the record before is still there.
        """
        facts = {"start": record.start, "message": record.message, "has_pending": record.pending is not None,
                 "number": record.number}
        self.write_file(self._record_name, Message("record", record.run, record.round + 1, record.phase, facts,
                                                   {"reply": np.frombuffer(reply, np.uint8)}),
                        committed=record.committed, pending=record.pending)
        return record

    def write_models(self, personal: Vector, shared: Vector | None, rounds: int) -> None:
        """Write the models that the party uses after the last round."""
        facts = {"rounds": rounds, "has_shared": shared is not None}
        self.write_file(self._MODELS, Message("models", "", facts=facts), personal=personal, shared=shared)

    def read_models(self, like: Vector) -> tuple[Vector, Vector | None] | None:
        """The personal and the shared model; None before the end of the run.

        Args:
            like: a model, or its shapes.

        Raises:
            InputError: the file is damaged.
        """
        if (message := self.read_file(self._MODELS)) is None:
            return None
        shared = self._restore(message, "shared", like) if message.fact("has_shared", bool) else None
        return self._restore(message, "personal", like), shared


class ServerStore(_Store):
    """The server's folder for one run: its record, and the log of the rounds and evaluations."""

    _record_name = "server.record"
    _log_name = "rounds.jsonl"
    _NAME = "run"
    _SECRET = "secret.key"

    def new_run(self) -> str:
        """A random name for a run. It is stored, because parties may have started it before the first record."""
        path = self.folder / self._NAME
        if not path.exists():
            write_text(path, secrets.token_hex(8))
        return path.read_text("utf-8")

    def new_secret(self, length: int) -> bytes:
        """Random bytes of the operating system, which only the owner of the folder can read. They are stored."""
        return stored_secret(self.folder / self._SECRET, length)

    def read_secret(self) -> bytes:
        """The bytes of ``new_secret``.

        Raises:
            DamagedFileError: they are missing: without them the cohorts of a run cannot be drawn again.
        """
        path = self.folder / self._SECRET
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise DamagedFileError(f"{path} is missing: it was there before. Use another folder") from None

    def exists(self) -> bool:
        """Whether the folder has a record."""
        return (self.folder / self._record_name).exists()

    def read(self, like: Callable[[int], ServerState]) -> ServerRecord | None:
        """The record, or None if the run has not begun. Entries of the log after the record are removed.

        Args:
            like: number of parties -> a server state, or its shapes.

        Raises:
            InputError: the record is damaged, or of another algorithm.
        """
        if (message := self._read_record()) is None:
            return None
        facts: dict[str, Any] = {name: _as_tuples(value) for name, value in message.facts.items()}
        for name in ("counted", "refused", "unanswered"):  # JSON has no numbers as keys
            facts[name] = {int(k): position for k, position in facts.get(name, {}).items()}
        state = self._restore(message, "state", like(len(facts["parties"])))
        record = ServerRecord(run=message.run, state=state, round=message.round, phase=message.phase, **facts)
        self._truncate_log(record.log_bytes)
        return record

    def append_line(self, entry: Mapping[str, Any]) -> int:
        """Append an entry to the log, and return the length of the log."""
        return append_to_log(self.folder / self._log_name, entry)

    def entries(self) -> Iterator[dict[str, Any]]:
        """The entries of the log; a last line that was not completed is left out."""
        with contextlib.suppress(FileNotFoundError), (self.folder / self._log_name).open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)

    def _truncate_log(self, length: int) -> None:
        path = self.folder / self._log_name
        if path.exists() and path.stat().st_size != length:
            with path.open("rb+") as file:
                file.truncate(length)
            sync_to_disk(path)

    def write(self, record: ServerRecord) -> None:
        """Write the record.

        Raises:
            OSError: it cannot be written; the record before is still there.
        """
        facts = record._asdict()
        for name in ("run", "round", "phase", "state"):
            del facts[name]
        self.write_file(self._record_name, Message("record", record.run, record.round, record.phase, facts),
                        state=record.state)


class StoredAnswers:
    """The last answer of each kind to messages about a state, in a folder of a site: one for each number of rounds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, kind: str, message: Message) -> bytes | None:
        """The stored answer to a message; None if it is to be answered."""
        stored = _read_message(self._path(kind))
        if stored is None:
            return None
        if stored.facts.get("message") == message.identity:
            return stored.arrays["answer"].tobytes()
        if stored.round >= message.round:
            raise Refusal(RefusalCode.PLAN, f"'{kind}' after {stored.round} rounds has been sent, and the message has "
                          "another content")
        return None

    def write(self, kind: str, message: Message, answer: bytes) -> bytes:
        """Store the answer to a message before it leaves, and return it.

        Raises:
            OSError: it cannot be written.
        """
        write_bytes(self._path(kind), encode_parts(Message(
            kind, "", message.round, facts={"message": message.identity},
            arrays={"answer": np.frombuffer(answer, np.uint8)})))
        return answer

    def _path(self, kind: str) -> Path:
        return self._folder / f"{kind}.record"


def _as_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_tuples(item) for key, item in value.items()}
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list) else value


def _content_of(path: Path) -> bytes | memoryview:
    """The bytes of a file, which the operating system reads when they are used. An empty file cannot be mapped."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _read_message(path: Path) -> Message | None:
    try:
        return decode(_content_of(path), _LARGEST_FILE)
    except FileNotFoundError:
        return None
    except WireError as error:
        raise DamagedFileError(f"{path} cannot be used: {error}") from error
