"""Answers to messages at a site: whatever the bytes are, the result is a message, and no text of an error leaves."""

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

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
