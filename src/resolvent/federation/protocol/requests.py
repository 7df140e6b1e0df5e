"""The messages of a federation: requests before and after the rounds, and the messages of the rounds of each method.

After a first line ``request``, a message is JSON, for the agreement on the tables and for the end of the run. All other
messages are those of the rounds of a method in the wire format, which contain the name of ``run_of_method``. Messages
in both directions contain plain data only.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from resolvent.errors import InputError, quote, shorten
from resolvent.federation.protocol.exchange import FederationStoppedError
from resolvent.federation.protocol.limits import read_refusal
from resolvent.federation.protocol.refusals import RefusalCode
from resolvent.federation.protocol.transport import Transport
from resolvent.federation.protocol.wire import head_of_message, identity_of_message

MAX_REQUEST = 2**24
_REQUEST, _REFUSED = b"request\n", b'{"refused"'
_NO_ANSWER = "no answer"
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")


class RequestError(InputError):
    """A message does not follow the protocol of a federation."""


class FederationRefusedError(InputError):
    """A site does not take part, or the sites do not agree; nothing has been trained."""


def library_version() -> str:
    """The version of the library, which must be the same at the server and at the sites."""
    return version("resolvent")


def request_bytes(kind: str, **content: Any) -> bytes:
    """A request to a site as bytes: its kind, and its content as JSON."""
    return _REQUEST + json.dumps({"kind": kind, **content}).encode()


def reply_bytes(content: Mapping[str, Any]) -> bytes:
    """A site's answer to a request: ``{"refused": refusals.outgoing(error, site)}`` if it does not take part."""
    return json.dumps(dict(content), allow_nan=False).encode()


def read_request(data: bytes | memoryview) -> dict[str, Any] | None:
    """Read a message at a site; None if it is one of the rounds, in the wire format."""
    if data[:len(_REQUEST)] != _REQUEST:
        return None
    content = _read_json(data[len(_REQUEST):])
    if not isinstance(content.get("kind"), str):
        raise RequestError("a request without a kind")
    return content


def run_of_method(run: str, number: int, plan: str) -> str:
    """The name in the messages of the rounds of a method: the site answers only those of the plan that it has approved.

    Args:
        number: number of the method and seed; methods are numbered from 0, with one seed after the other.
    """
    return f"{run}/{number}/{plan}"


def run_of_table(run: str, plan: str) -> str:
    """The name in the messages of the secure sum of the numbers of the tables; see ``run_of_method``."""
    return f"{run}/table/{plan}"


def check_run_name(run: Any) -> str:
    """Check the name of a run, which becomes the name of a folder."""
    if not isinstance(run, str) or not _RUN.fullmatch(run):
        raise RequestError(f"{quote(run)} cannot be the name of a run")
    return run


def ask_all(transport: Transport, requests: Mapping[str, bytes], deadline: float) -> dict[str, dict[str, Any]]:
    """Send a request to every site, and return the answers.

    Raises:
        FederationRefusedError: a site refuses; the message names all such sites.
        FederationStoppedError: a site does not answer, or waits for the approval of the plan.
    """
    answers, problems = ask_each(transport, requests, deadline)
    if problems:
        lost = all(reason.startswith((_NO_ANSWER, f"refused ({RefusalCode.WAITING})")) for reason in problems.values())
        kind = FederationStoppedError if lost else FederationRefusedError
        raise kind("; ".join(f"{site}: {reason}" for site, reason in problems.items()))
    return answers


def ask_each(transport: Transport, requests: Mapping[str, bytes],
             deadline: float) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Send a request to every site; returns the answers, and for each other site why it has none."""
    received = transport.broadcast(requests, deadline=deadline, quorum=len(requests), grace=0.0)
    reasons = transport.reasons()
    answers: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}
    for site in requests:
        try:
            if site not in received and site in reasons:
                raise RequestError(reasons[site])
            if site not in received:
                raise RequestError(f"{_NO_ANSWER}: the site failed, or took longer than {deadline:.0f} s; its log "
                                   "says which")
            answer = _read_json(received[site])
            if "refused" in answer:
                raise RequestError(read_refusal(answer["refused"])[1])
            answers[site] = answer
        except RequestError as error:
            problems[site] = str(error)
    return answers, problems


def digest_of_reply(reply: bytes | memoryview) -> str:
    """What identifies a reply: the checksum of a message of the rounds, which its reader checks; otherwise SHA-256."""
    try:
        head_of_message(reply)
    except InputError:
        return hashlib.sha256(reply).hexdigest()
    return identity_of_message(reply)


def refusal_code(reply: bytes | memoryview) -> str | None:
    """The code with which a site refuses, as it has arrived; None if the reply is no refusal, or cannot be read."""
    try:
        if reply[:len(_REFUSED)] == _REFUSED:
            content = _read_json(reply)["refused"]
        else:
            head = head_of_message(reply)
            content = head.facts if head.kind == "refusal" else None
    except (InputError, KeyError):
        return None
    code = content.get("code") if isinstance(content, dict) else None
    return code if isinstance(code, str) else None


def _read_json(data: bytes | memoryview) -> dict[str, Any]:
    if len(data) > MAX_REQUEST:
        raise RequestError(f"a message of {len(data)} bytes, more than the allowed {MAX_REQUEST}")
    try:
        content = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"a message that is not JSON: {shorten(error)}") from error
    if not isinstance(content, dict):
        raise RequestError("a message that is not a JSON object")
    return content
