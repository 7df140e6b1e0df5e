"""The door of a process of this library, through which the apps of Flower on the same machine reach it."""

import contextlib
import json
import queue
import secrets
import socket
import threading
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any, Self

from resolvent.data.files.atomic_files import write_secret
from resolvent.errors import InputError, shorten
from resolvent.federation.engines.processes import free_port

DOOR_FILE = "door.json"  # in a kit
_CLOSE_SECONDS = 5.0


def has_door(kit: Path) -> bool:
    """Whether a process of the kit has opened its door once."""
    return (kit / DOOR_FILE).exists()


def door_setting(kit: Path) -> str:
    """The setting with which an app of Flower finds a door, as ``--node-config`` and ``--run-config`` take it."""
    return f"door={json.dumps(str(kit / DOOR_FILE))}"


class Door:
    """Accepts connections of this machine from programs that prove to know a secret, and proves it to them.

    Port and secret are in a file of the kit, which stays, so that a copy can be given to the user of another program
    of this machine.

    Args:
        kit: the folder of a participant.
    """

    def __init__(self, kit: Path) -> None:
        file = kit / DOOR_FILE
        if not file.exists():
            write_secret(file, json.dumps({"port": free_port(), "secret": secrets.token_hex(32)}).encode())
        content = json.loads(file.read_text("utf-8"))
        self._address = "127.0.0.1", content["port"]
        try:
            self._listener = Listener(self._address, authkey=bytes.fromhex(content["secret"]))
        except OSError as error:
            raise InputError(f"port {content['port']} of this machine cannot be used ({shorten(error)}): end the "
                             f"program that has it, or remove {file}, so that another port is chosen") from error
        self._arrived: queue.Queue[Any] = queue.Queue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            socket.create_connection(self._address).close()  # the thread waits for a connection
        self._thread.join(_CLOSE_SECONDS)  # a program that has connected and says nothing can hold it
        self._listener.close()
        self.close_unused()

    def _accept(self) -> None:
        while not self._is_closed:
            with contextlib.suppress(AuthenticationError, EOFError, OSError):
                self._arrived.put(self._listener.accept())

    def close_unused(self) -> None:
        """Close the connections that nobody has taken."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._arrived.get_nowait().close()

    @contextlib.contextmanager
    def connection(self, seconds: float | None = None) -> Iterator[Any]:
        """The next connection; it is closed with the block.

        Raises:
            TimeoutError: there is none in this time.
        """
        try:
            connection = self._arrived.get(timeout=seconds)
        except queue.Empty as error:
            raise TimeoutError(f"nothing has connected within {seconds:.0f} s") from error
        with connection:
            yield connection
