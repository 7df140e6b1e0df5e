"""Which sites are connected, as the command reads it from the log of the engine that it runs."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from resolvent.data.files.atomic_files import write_text

_FILE = "connections.json"


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


def read_connections(kit: Path) -> Mapping[str, bool]:
    """Name -> whether it is connected; empty if nothing is known."""
    try:
        content = json.loads((kit / _FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): value is True for name, value in content.items()} if isinstance(content, dict) else {}
