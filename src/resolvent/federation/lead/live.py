"""A small web server for the view of a participant: a page, JSON, and metrics of Prometheus. It only reads.

The page is one file without scripts and without outside resources, and the browser loads it again every few seconds. By
default the server listens on the loopback address only. A page of another origin cannot read it: there are no headers
that allow it, and a request must name the address at which the server listens (DNS rebinding).
"""

import contextlib
import ipaddress
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

from resolvent.comparisons.page_text import page_text
from resolvent.errors import InputError, shorten
from resolvent.federation.lead.monitoring import View, metrics_text

_SECONDS = 2  # between two loads of the page
_MAX_PORT = 65535
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
            "X-Frame-Options": "DENY",
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}
_TIMES = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))
_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def live_page(view: View) -> str:
    """The page of a view. Names of sites and all other values are escaped."""
    since = None if view.status is None else view.seconds_since(view.status.last_reply)
    return page_text("live", package="resolvent.federation", view=view, run=view.status, sites=view.sites(),
                     since=since, seconds=_SECONDS, duration=_duration, size=_size)


_CONTENTS: Mapping[str, tuple[str, Callable[[View], str]]] = {
    "/": ("text/html; charset=utf-8", live_page),
    "/status.json": ("application/json", lambda view: json.dumps(view.plain())),
    "/metrics": ("text/plain; version=0.0.4; charset=utf-8", metrics_text)}


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``[HOST:]PORT``; without a host the loopback address."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > _MAX_PORT:
        raise InputError(f"--live {shorten(text)}: give a port, such as 8010, or an address and a port, such as "
                         "0.0.0.0:8010")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextlib.contextmanager
def serving(address: tuple[str, int], view: Callable[[], View]) -> Iterator[str]:
    """Serve a view while the block runs; yields the address of the page.

    Args:
        address: host and port; port 0 takes a free one.
        view: makes the view, for every request anew.
    """
    class Handler(_Handler):
        make_view = staticmethod(view)
        host = address[0]

    try:
        server = ThreadingHTTPServer(address, Handler)
    except OSError as error:
        raise InputError(f"--live: {address[0]}:{address[1]} cannot be used ({shorten(error)}): choose another port, "
                         "such as 8011") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{address[0]}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    make_view: Callable[[], View]
    host: str
    timeout = 10  # seconds; a client that sends nothing ends

    def do_GET(self) -> None:
        """Answer a request."""
        content = _CONTENTS.get(self.path.partition("?")[0])
        if not self._names_this_address():
            self._send(HTTPStatus.FORBIDDEN, "text/plain", "use the address that the command has printed")
        elif content is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "there are /, /status.json and /metrics")
        else:
            self._send(HTTPStatus.OK, content[0], content[1](self.make_view()))

    def _names_this_address(self) -> bool:
        """Whether the request names this machine, if only this machine is served."""
        try:
            if not ipaddress.ip_address(self.host).is_loopback:
                return True
        except ValueError:
            if self.host != "localhost":
                return True
        name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        return name.strip("[]") in ("localhost", "127.0.0.1", "::1", self.host)

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not printed among the messages of the command."""

    @override
    def version_string(self) -> str:
        return "resolvent"


def _duration(seconds: float) -> str:
    """Such as ``5 s`` or ``3 min``."""
    return next((f"{seconds / unit:.0f} {name}" for unit, name in _TIMES if seconds >= unit), f"{seconds:.0f} s")


def _size(size: int) -> str:
    """Such as ``1.2 MB``."""
    return next((f"{size / unit:.1f} {name}" for unit, name in _SIZES if size >= unit), f"{size} bytes")
