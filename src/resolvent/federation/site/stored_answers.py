"""The last answers of a party about its models: a message that arrives again gets the same bytes, and no other one."""

from pathlib import Path

import numpy as np

from resolvent.data.files.atomic_files import write_atomically
from resolvent.data.files.digests import DamagedFileError
from resolvent.federation.protocol.refusals import Refusal, RefusalCode
from resolvent.federation.protocol.wire import Message, WireError, decode, encode


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
