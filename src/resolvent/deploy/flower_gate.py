"""A gate before the HTTP interface of Flower's SuperLink: other machines reach the functions for nodes only.

Flower authenticates nodes and not persons: whoever reaches the port of a SuperLink can register a node or start a run.
Behind the gate only programs on the server's own machine can do so.
"""

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

__all__ = ["Gate"]

_Scope: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[Any]]
_Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_Application: TypeAlias = Callable[[_Scope, _Receive, _Send], Awaitable[None]]
_NODE_PATHS = "/v1/fleet/"


class Gate:
    """An ASGI application that refuses requests of other machines, except those of nodes.

    Args:
        application: the application behind the gate.
    """

    def __init__(self, application: _Application) -> None:
        self._application = application

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Pass a request on, or answer that it is not allowed."""
        if scope["type"] == "lifespan" or _is_allowed(scope):
            await self._application(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})


def _is_allowed(scope: _Scope) -> bool:
    is_of_a_node = scope["type"] == "http" and str(scope["path"]).startswith(_NODE_PATHS)
    return is_of_a_node or _is_this_machine(scope.get("client"))


def _is_this_machine(client: Any) -> bool:
    try:
        return bool(ipaddress.ip_address(client[0]).is_loopback)
    except (TypeError, ValueError, IndexError):
        return False
