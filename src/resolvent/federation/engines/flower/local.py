"""A SuperLink and SuperNodes on this machine, over TLS, for a rehearsal: Flower's own commands start them.

Run as ``python -m resolvent.federation.engines.flower.local PARENT PROGRAM ARGUMENTS`` the module starts a program that
ends when its parent process ends.
"""

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from resolvent.data.files.atomic_files import write_text
from resolvent.federation.engines.flower.kits import Authority
from resolvent.federation.engines.processes import EngineProcess, end_with_parent, free_port, running, start_process
from resolvent.federation.protocol.kits import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE

_HOST = "localhost"
_START_SECONDS = 120.0
_HOME = "FLWR_HOME"  # the variable with the folder of Flower's configuration
# Flower reports nothing to its makers, looks for no update, and installs nothing.
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
          "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}


def _start(folder: Path, program: str, *arguments: str | Path) -> EngineProcess:
    """Start a program of Flower, with a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = Path(sys.executable).parent  # it starts other programs of Flower by their names
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
    return start_process(folder, [__name__, str(programs / program), *map(str, arguments)],
                         {**_QUIET, _HOME: str(folder / "home"), "PATH": path})


def _accepts_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def superlink_and_supernodes(folder: Path, name: str, settings: Mapping[str, str]) -> Iterator[None]:
    """Run a SuperLink and a SuperNode for each site.

    In the block, Flower's configuration of this process has a connection to the SuperLink.

    Args:
        folder: a new folder for the files of Flower.
        name: the name of the connection.
        settings: site -> the configuration of its SuperNode, as ``--node-config`` takes it.
    """
    port, startup = str(free_port()), folder / "startup"
    # The SuperLink's own programs connect to the address to which it is bound.
    Authority(folder / "authority", name).certify("superlink", startup, hosts=(_HOST, "127.0.0.1"))
    write_text(folder / "config.toml", f'[superlink.{name}]\naddress = "{_HOST}:{port}"\n'
                                       f'root-certificates = {json.dumps(str(startup / AUTHORITY_FILE))}\n')
    home = os.environ.get(_HOME)
    with contextlib.ExitStack() as stack:
        superlink = stack.enter_context(running(_start(
            folder / "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", port, "--ssl-certfile",
            startup / CERTIFICATE_FILE, "--ssl-keyfile", startup / KEY_FILE, "--ssl-ca-certfile",
            startup / AUTHORITY_FILE)))
        superlink.wait_for(lambda: _accepts_connections(int(port)), _START_SECONDS)
        for site, setting in settings.items():
            stack.enter_context(running(_start(
                folder / site, "flower-supernode", "--superlink", f"{_HOST}:{port}", "--root-certificates",
                startup / AUTHORITY_FILE, "--port", str(free_port()), "--node-config", setting)))
        os.environ |= {**_QUIET, _HOME: str(folder)}
        try:
            yield
        finally:
            os.environ.pop(_HOME)
            if home is not None:
                os.environ[_HOME] = home


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
