"""The adapter for Flower: a transport over the Grid of the ServerApp, which the app passes on, see ``relay``.

Messages are bytes in both directions. The lead signs what it sends, and a site what it answers: no program between them
can change a message, or send one of its own. The state of a party is in its store.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from typing_extensions import override

from resolvent.errors import InputError, shorten
from resolvent.federation.protocol.connections import folder_id, report_second_session
from resolvent.federation.protocol.kits import KitNote
from resolvent.federation.protocol.transport import EngineTransport, PartyHandler, TransportError, signed_reply
from resolvent.federation.protocol.wire import EncodedMessage

_PATIENCE = 120.0  # seconds until a program of Flower that says nothing is taken for frozen
_HELLO = b"hello "  # and a number that nobody knows before: the question which site a node has


def _signed_message(message: bytes) -> bytes:
    return b"message " + sha256(message).digest()


def sealed(proof: Any, content: bytes) -> bytes:
    """Bytes after the signature of their sender."""
    return b"%b\n%b" % (json.dumps(proof).encode(), content)


def unsealed(data: bytes) -> tuple[Any, bytes]:
    """The signature, which is not checked, and the bytes of ``sealed``; None if there is no signature."""
    proof, _, content = data.partition(b"\n")
    try:
        return json.loads(proof), content
    except ValueError:
        return None, content


def answer_of_site(note: KitNote, handle: PartyHandler) -> Callable[[bytes], bytes]:
    """The function that answers what has arrived through the door of a site; it acts on messages of the lead only.

    Args:
        handle: answers a message, such as ``Site.handle``.
    """
    def answer(data: bytes) -> bytes:
        proof, message = unsealed(data)
        note.verify(_signed_message(message), proof)
        if message.startswith(_HELLO):
            introduction = {"site": note.name, "folder": folder_id(note.kit), "hello": message.decode("ascii")}
            reply = json.dumps(introduction).encode()
        else:
            reply = handle(message)
        return sealed(note.sign(signed_reply(note.name, reply)), reply)

    return answer


class RelayedGrid:
    """The Grid of a ServerApp.

    Args:
        connection: to the ServerApp, which answers one order after the other.
    """

    def __init__(self, note: KitNote, connection: Any) -> None:
        self._note, self._connection = note, connection
        self._asked: dict[str, tuple[int, bytes, float]] = {}  # id of a hello -> its node, its content, the time
        self._sites: dict[int, tuple[str, str]] = {}  # node -> its site, and the folder of the kit

    def push(self, node: int, message: bytes) -> str:
        """Send a message to a node; returns the id of the message, empty if Flower has not accepted it."""
        return next(iter(self._order({"to": node}, sealed(self._note.sign(_signed_message(message)), message))), "")

    def pull(self, sent: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """The answers to messages, as (id of the message, bytes); None if it could not be answered."""
        with _named_errors():
            answers = self._order({"replies to": [*sent]})
            contents = [self._received() for _ in answers]
        for (message, is_failed), content in zip(answers, contents, strict=True):
            yield message, None if is_failed else content

    def nodes(self) -> dict[str, int]:
        """Name of a site that is connected -> its node. A new node is asked for its site, and answers later."""
        online = {*self._order({})}
        self._sites = {node: site for node, site in self._sites.items() if node in online}
        now = time.monotonic()  # a hello can be lost, with a process of Flower
        recently = {node for node, _, asked in self._asked.values() if now - asked < _PATIENCE}
        for node in online - {*self._sites} - recently:
            hello = _HELLO + secrets.token_hex(16).encode()
            if message := self.push(node, hello):
                self._asked[message] = node, hello, now
        for message, content in self.pull([*self._asked]) if self._asked else ():
            node, hello, _ = self._asked.pop(message)
            with contextlib.suppress(InputError):  # a node of another federation, or whose site is not started
                self._introduce(node, hello, content)
        return {site: node for node, (site, _) in self._sites.items()}

    def connected_sites(self) -> set[str]:
        """The names of the sites that are connected."""
        return {*self.nodes()}

    def _introduce(self, node: int, hello: bytes, content: bytes | None) -> None:
        proof, reply = unsealed(content or b"")
        try:
            answer = json.loads(reply)
            site, folder, said = (str(answer[key]) for key in ("site", "folder", "hello"))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError("the node does not say which site it has") from error
        self._note.verify_site(site, signed_reply(site, reply), proof)
        if said.encode() != hello:
            raise InputError("the answer is one to another question")
        known = {node: its_folder for node, (name, its_folder) in self._sites.items() if name == site}
        if {*known.values()} - {folder}:
            report_second_session(self._note.kit, site)
            return
        for former in known:  # the SuperNode was started again
            del self._sites[former]
        self._sites[node] = site, folder

    def _order(self, order: Mapping[str, Any], *contents: bytes) -> Any:
        with _named_errors():
            for content in (json.dumps(order).encode(), *contents):
                self._connection.send_bytes(content)
            return json.loads(self._received())

    def _received(self) -> bytes:
        if not self._connection.poll(_PATIENCE):
            raise TimeoutError(f"the ServerApp has said nothing for {_PATIENCE:.0f} s")
        content: bytes = self._connection.recv_bytes()
        return content


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    """Errors of the connection as those of a transport: the ServerApp, the SuperLink or the network has ended."""
    try:
        yield
    except (OSError, EOFError) as error:
        raise TransportError(f"the ServerApp has ended ({shorten(error) or type(error).__name__})") from error


class FlowerTransport(EngineTransport):
    """Sends messages to the nodes of sites, and collects the answers.

    Args:
        nodes: name of a site -> its node.
        check: see ``EngineTransport``.

    Attributes:
        failed: sites whose last answer was an error: the site's process has failed, or was started again.
    """

    def __init__(self, grid: RelayedGrid, nodes: Mapping[str, int], check: Callable[[str, bytes, Any], None]) -> None:
        super().__init__((*nodes,), check)
        self._grid, self._nodes = grid, dict(nodes)
        self._unanswered: dict[str, tuple[str, int]] = {}  # id of a message -> site, number of the broadcast
        self.failed: set[str] = set()

    @override
    def late_replies(self) -> list[tuple[str, bytes | memoryview]]:
        self._poll()
        return super().late_replies()

    @override
    def _send(self, name: str, message: EncodedMessage, number: int) -> str:
        if sent := self._grid.push(self._nodes[name], bytes(message)):
            self._unanswered[sent] = name, number
        return sent

    @override
    def _is_open(self, sent: str) -> bool:
        return sent in self._unanswered

    @override
    def _poll(self) -> None:
        """Collect replies. An answered message is removed, a failed one too."""
        for message, content in self._grid.pull([*self._unanswered]) if self._unanswered else ():
            site, number = self._unanswered.pop(message)
            (self.failed.add if content is None else self.failed.discard)(site)
            proof, reply = (None, None) if content is None else unsealed(content)
            self._receive(site, self._checked(site, reply, proof), number)
