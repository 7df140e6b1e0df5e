"""Which sites are connected, as the command reads it from the log of its engine; and why a site cannot connect."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resolvent.data.files.atomic_files import write_text
from resolvent.federation.protocol.kits import KitNote

_FILE, _SIGNS_FILE = "connections.json", "signs.json"  # in a kit
_SILENT = 30.0  # seconds; a site gives a sign every 10 s
_SECONDS = 5.0  # for the connection, and for the first answer
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # how a gRPC client begins


class Connections:
    """The connections of a participant since its command was started. They are written into its kit.

    Args:
        kit: the kit of the server, whose connections are those of the sites; or of a site, which has one.
    """

    def __init__(self, kit: Path) -> None:
        self._path, self._lock = kit / _FILE, threading.Lock()
        self._connected: dict[str, bool] = {}
        self._write()

    def set(self, name: str, *, is_connected: bool) -> None:
        """Record that a participant has connected, or is no longer connected."""
        with self._lock:
            self._connected[name] = is_connected
            self._write()

    def clear(self) -> None:
        """Record that no participant is connected, because the engine has ended."""
        with self._lock:
            self._connected = dict.fromkeys(self._connected, False)
            self._write()

    def _write(self) -> None:
        write_text(self._path, json.dumps(self._connected))


def write_signs(kit: Path, signs: Mapping[str, float]) -> None:
    """Write when each site has given its last sign to the server, from the engine's own process."""
    write_text(kit / _SIGNS_FILE, json.dumps(signs))


def read_connections(kit: Path) -> Mapping[str, bool]:
    """Name -> whether it is connected and, where the engine knows it, has given a sign lately; empty if unknown."""
    now, signs = time.time(), _read(kit / _SIGNS_FILE)
    return {name: value is True and now - float(signs.get(name, now)) <= _SILENT
            for name, value in _read(kit / _FILE).items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def connection_problem(note: KitNote) -> str:
    """Why a participant cannot connect to its server, in a sentence that begins with name, port or certificate.

    Returns:
        An empty text if the server answers and accepts the certificate of the kit.
    """
    host, _, port = note.address.rpartition(":")
    startup, is_nvflare = note.kit / "startup", note.engine == "nvflare"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the authority signs for this federation only
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(startup / ("rootCA.pem" if is_nvflare else "authority.pem"))
        if is_nvflare:
            context.load_cert_chain(startup / "client.crt", startup / "client.key")
    except OSError as error:
        return (f"certificate: that of the kit cannot be read from {startup} ({error.strerror or error}): ask the lead "
                "for a new kit")
    try:
        plain = socket.create_connection((host, int(port)), _SECONDS)
    except socket.gaierror as error:
        return (f"name: this machine does not know {host} ({error.strerror}): the consortium file has the host; ask "
                "who runs the network of this machine")
    except OSError as error:
        return (f"port: nothing answers at {note.address} ({error.strerror or error}): the server is not started, or a "
                "firewall is between it and this machine")
    try:
        with plain, context.wrap_socket(plain) as connection:
            connection.sendall(_HTTP2)
            return "" if connection.recv(1) else f"certificate: the server at {note.address} refuses that of this kit"
    except TimeoutError:
        return f"port: a program at {note.address} accepts connections and says nothing: it is stopped, or another one"
    except OSError as error:  # an error of TLS, or the end of the connection
        return (f"certificate: the one of the server at {note.address} and this kit are not of one federation ("
                f"{getattr(error, 'reason', None) or error.strerror or error}): ask the lead for a new kit")
