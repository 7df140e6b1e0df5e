"""Who is connected to a server, what its engine says about sessions, and why a site cannot connect.

The engine's own process writes it into the kit, by components of this library: the command that has started the process
reads it there, and no text of a log.
"""

import hashlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resolvent.data.files.atomic_files import write_text
from resolvent.federation.protocol.kits import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, KitNote
from resolvent.federation.protocol.stores import append_to_log

_SIGNS, _SESSIONS = "signs.json", "second_sessions.jsonl"  # in a kit
_SILENT = 30.0  # seconds; a site gives a sign every 10 s
_SECONDS = 5.0  # for the connection, and for the first answer
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # how a gRPC client begins


def write_signs(kit: Path, signs: Mapping[str, float]) -> None:
    """Write when each site has given its last sign: in the server's kit that of all, in a site's kit its own."""
    write_text(kit / _SIGNS, json.dumps(signs))


def forget_signs(kit: Path) -> None:
    """No participant is connected, because the engine's process has ended."""
    (kit / _SIGNS).unlink(missing_ok=True)


def knows_connections(kit: Path) -> bool:
    """Whether a sign was written: the server accepts sites, or the site is connected."""
    return (kit / _SIGNS).exists()


def read_connections(kit: Path) -> Mapping[str, bool]:
    """Name of a site that has been connected -> whether it has given a sign lately; empty if unknown."""
    try:
        content = json.loads((kit / _SIGNS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: time.time() - float(sign) <= _SILENT for name, sign in content.items()}


def folder_id(kit: Path) -> str:
    """An id of a folder of a machine, from which neither can be read. A kit runs once in one folder."""
    return hashlib.sha256(f"{socket.gethostname()}:{kit.resolve()}".encode()).hexdigest()[:16]


def report_second_session(kit: Path, site: str, *, is_refused_here: bool = False) -> None:
    """Write into a kit that two processes connect as one site, such as with two copies of its kit.

    Args:
        is_refused_here: whether the process of this kit is the second one.
    """
    append_to_log(kit / _SESSIONS, {"site": site, "is_refused_here": is_refused_here})


class SecondSessions:
    """The second sessions that are reported from now on."""

    def __init__(self, kit: Path) -> None:
        self._path = kit / _SESSIONS
        self._lock = threading.Lock()
        self._length = self._path.stat().st_size if self._path.exists() else 0

    def new(self) -> list[tuple[str, bool]]:
        """(site, whether the process of this kit is the one that was refused) of those since the last call."""
        if not self._path.exists():
            return []
        with self._lock, self._path.open("rb") as file:
            file.seek(self._length)
            content = file.read()
            content = content[:content.rfind(b"\n") + 1]
            self._length += len(content)
        entries: list[dict[str, Any]] = [json.loads(line) for line in content.splitlines()]
        return sorted({(entry["site"], entry["is_refused_here"]) for entry in entries})


def connection_problem(note: KitNote) -> str:
    """Why a participant of NVIDIA FLARE cannot connect, in a sentence that begins with name, port or certificate.

    Returns:
        An empty text if the server answers and accepts the certificate of the kit.
    """
    host, _, port = note.address.rpartition(":")
    startup = note.kit / "startup"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the authority signs for this federation only
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(startup / AUTHORITY_FILE)
        context.load_cert_chain(startup / CERTIFICATE_FILE, startup / KEY_FILE)
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
