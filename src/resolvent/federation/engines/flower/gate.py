"""A gate before the HTTP interface of Flower's SuperLink: other machines reach the functions for nodes only.

Flower authenticates nodes and not persons: whoever reaches the port of a SuperLink can register a node or start a run.
Behind the gate only programs on the server's own machine can do so.
"""

import ipaddress
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

_Scope: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[Any]]
_Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_Application: TypeAlias = Callable[[_Scope, _Receive, _Send], Awaitable[None]]
_NODE_PATHS, _ACTIVATION = "/v1/fleet/", "/v1/fleet/activate-node"
_FAILED = 400  # the first status of HTTP that means a failure
# A SuperLink refuses the key of a connected node, and for 60 s that of a node that was killed.
_KEY_SECONDS = 75.0


class RefusedNodes:
    """Reports a second node with the key of a connected one, when it has been refused for longer than a killed node.

    Args:
        keys: a function that returns name of a site -> the public key of its node; keys can change.
        report: a function that is called with the name of a site, once for each site.
    """

    def __init__(self, keys: Callable[[], Mapping[str, str]], report: Callable[[str], None]) -> None:
        self._keys, self._report = keys, report
        self._since: dict[str, float] = {}  # site -> time of the first refusal in a row
        self._reported: set[str] = set()

    def answered(self, request: bytes, status: int) -> None:
        """Record the answer to a request to activate a node; the request contains the key."""
        for site in [site for site, key in self._keys().items() if key.encode() in request]:
            if status < _FAILED:
                self._since.pop(site, None)
                continue
            since = self._since.setdefault(site, time.monotonic())
            if time.monotonic() - since >= _KEY_SECONDS and site not in self._reported:
                self._reported.add(site)
                self._report(site)


class Gate:
    """An ASGI application that refuses requests of other machines, except those of nodes.

    Args:
        nodes: observes the requests to activate a node.
    """

    def __init__(self, application: _Application, nodes: RefusedNodes) -> None:
        self._application, self._nodes = application, nodes

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Pass a request on, or answer that it is not allowed."""
        if scope["type"] == "http" and scope["path"] == _ACTIVATION:
            await self._activate(scope, receive, send)
        elif scope["type"] == "lifespan" or _is_allowed(scope):
            await self._application(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _activate(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        content = bytearray()

        async def receive_part() -> Any:
            message = await receive()
            content.extend(message.get("body", b""))
            return message

        async def send_part(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._nodes.answered(bytes(content), message["status"])
            await send(message)

        await self._application(scope, receive_part, send_part)


def _is_allowed(scope: _Scope) -> bool:
    is_of_a_node = scope["type"] == "http" and str(scope["path"]).startswith(_NODE_PATHS)
    return is_of_a_node or _is_this_machine(scope.get("client"))


def _is_this_machine(client: Any) -> bool:
    try:
        return bool(ipaddress.ip_address(client[0]).is_loopback)
    except (TypeError, ValueError, IndexError):
        return False
