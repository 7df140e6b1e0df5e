"""Answers to messages at a site: whatever the bytes are, the result is a message, and no text of an error leaves."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.files.atomic_files import write_atomically
from resolvent.data.files.digests import DamagedFileError
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, outgoing
from resolvent.federation.protocol.wire import Message, WireError, decode, encode, identity_of_message


def answer_message(data: bytes | memoryview, site: str, max_bytes: float,
                   answer: Callable[[Message, str], bytes]) -> bytes:
    """Answer a message: what ``answer`` returns, or a refusal with a code, see ``outgoing``.

    Args:
        site: name of the site; a message for another one is refused.
        max_bytes: largest number of bytes of the message.
        answer: (message, its identity) -> the bytes of the answer.
    """
    identity = identity_of_message(data) if isinstance(data, bytes | memoryview) else ""
    message = Message("", "")
    try:
        message = decode(data, int(max_bytes))
        if message.fact("party", str) != site:
            raise Refusal(RefusalCode.CONFLICT, f"the message is for another party than {site}")
        return answer(message, identity)
    except WireError as error:
        return encode_refusal(Refusal(RefusalCode.DAMAGED, str(error)), site, message, identity)
    except Exception as error:  # of the model, the solver or the table, too; its text can contain values of the rows
        return encode_refusal(error, site, message, identity)


def encode_refusal(error: Exception, site: str, message: Message, identity: str) -> bytes:
    """The answer that says by a code why a site does not act on a message."""
    short = Message("", message.run[:100], message.round, message.phase)
    return encode_answer("refusal", site, short, identity, outgoing(error, site))


def encode_answer(kind: str, site: str, message: Message, identity: str, facts: Mapping[str, Any],
                  arrays: Mapping[str, NDArray[Any]] | None = None) -> bytes:
    """An answer of a site to a message, which it names by its identity."""
    return encode(Message(kind, message.run, message.round, message.phase,
                          {"answers": identity, "party": site, **facts}, arrays or {}))


class StoredAnswers:
    """The last answer of each kind, in a party's folder: for each number of rounds there is one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, kind: str, rounds: int, identity: str) -> bytes | None:
        """The stored answer to a message; None if it is to be answered."""
        try:
            stored = decode(self._path(kind).read_bytes())
        except FileNotFoundError:
            return None
        except WireError as error:
            raise DamagedFileError(f"{self._path(kind)} cannot be used: {error}") from error
        if stored.facts.get("message") == identity:
            return stored.arrays["answer"].tobytes()
        if stored.round >= rounds:
            raise Refusal(RefusalCode.PLAN, f"'{kind}' after {stored.round} rounds has been sent, and the message has "
                          "another content")
        return None

    def write(self, kind: str, rounds: int, identity: str, answer: bytes) -> bytes:
        """Store an answer before it leaves, and return it.

        Raises:
            OSError: it cannot be written.
        """
        content = encode(Message(kind, "", rounds, facts={"message": identity},
                                 arrays={"answer": np.frombuffer(answer, np.uint8)}))

        def write(path: Path) -> None:
            path.write_bytes(content)

        write_atomically(self._path(kind), write)
        return answer

    def _path(self, kind: str) -> Path:
        return self._folder / f"{kind}.record"
