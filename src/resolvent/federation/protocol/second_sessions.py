"""Second sessions: two processes that connect to the server as one site, such as with two copies of a kit.

The server's engine notices them, and writes them to a log in the server's kit. The server's part of a run reads it.
"""

import hashlib
import json
import socket
import threading
from pathlib import Path

from resolvent.federation.protocol.stores import append_to_log

SECOND_SESSION = "resolvent: second session of "  # begins a line in the log of the server and of the site
_FILE = "second_sessions.jsonl"


def folder_id(kit: Path) -> str:
    """An id of a folder of a machine, from which neither can be read. A kit runs once in one folder."""
    return hashlib.sha256(f"{socket.gethostname()}:{kit.resolve()}".encode()).hexdigest()[:16]


def report_second_session(kit: Path, site: str) -> None:
    """Write to the output of the server's process, and to the log in its kit, that a site has a second session."""
    print(f"{SECOND_SESSION}{site}", flush=True)
    append_to_log(kit / _FILE, {"site": site})


class SecondSessions:
    """The second sessions that are reported from now on."""

    def __init__(self, kit: Path) -> None:
        self._path = kit / _FILE
        self._lock = threading.Lock()
        self._length = self._path.stat().st_size if self._path.exists() else 0

    def new(self) -> list[str]:
        """The sites of which a second session was reported since the last call."""
        if not self._path.exists():
            return []
        with self._lock, self._path.open("rb") as file:
            file.seek(self._length)
            content = file.read()
            content = content[:content.rfind(b"\n") + 1]
            self._length += len(content)
        return sorted({json.loads(line)["site"] for line in content.splitlines()})
