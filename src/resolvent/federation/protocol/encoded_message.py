"""A message that is sent without a copy of its arrays."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from resolvent.federation.protocol.wire import Message, encode_parts, shared_if_equal


class EncodedMessage:
    """A message as parts that follow each other; ``bytes(encoded)`` joins them.

    Arrays are views, not copies, so that the messages of a round to many parties take the memory of one model.

    Args:
        like: an earlier message. An array with the bits of the one of this name there is replaced by that one.
    """

    def __init__(self, message: Message, like: "EncodedMessage | None" = None) -> None:
        self._arrays = {name: np.asarray(array, order="C") for name, array in message.arrays.items()}
        if like is not None:
            self._arrays = {name: shared_if_equal(like._arrays.get(name), array)
                            for name, array in self._arrays.items()}
        self.parts = encode_parts(replace(message, arrays=self._arrays))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


Outgoing: TypeAlias = bytes | EncodedMessage
"""A message that is sent: ``bytes(message)`` are its bytes, and ``len(message)`` their number."""


def encode_all(names: Iterable[str],
               write: Callable[[str, EncodedMessage | None], EncodedMessage]) -> dict[str, Outgoing]:
    """Name of a party -> its message; arrays with the bits of the first message's are one array.

    Args:
        write: (name, the first message) -> the message.
    """
    messages: dict[str, Outgoing] = {}
    first = None
    for name in names:
        messages[name] = message = write(name, first)
        first = message if first is None else first
    return messages


def parts_of(message: Outgoing) -> list[bytes | memoryview]:
    """The parts of a message, without a copy; of bytes, they are the only part."""
    return message.parts if isinstance(message, EncodedMessage) else [message]
