"""Runs Flower's SuperLink or SuperNode in this process, which ends when its parent process ends.

Run as ``python -m resolvent.federation.engines.flower.start PARENT KIT`` for the server, and with ``PORT SECRET_FILE``
for a site. Both are started with ``--isolation process``: they move messages, and run no app that was sent to them.
"""

import functools
import json
import math
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from resolvent.federation.engines.flower.gate import Gate, RefusedNodes
from resolvent.federation.engines.flower.kits import (
    AUTHORITY_FILE,
    NODE_KEY,
    SECRET_FILE,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    SITES_FILE,
)
from resolvent.federation.engines.processes import end_with_parent
from resolvent.federation.protocol.connections import (
    connection_problem,
    knows_connections,
    report_second_session,
    write_signs,
)
from resolvent.federation.protocol.kits import KitNote

_MAX_PAUSE = 0.2  # seconds
_WATCH = 1.0  # seconds between two queries for the sites that are connected


def run_superlink(note: KitNote) -> None:
    """Run the SuperLink behind the gate, register the sites, and write into the kit which of them are connected."""
    import uvicorn
    from flwr.superlink.cli.flower_superlink import flower_superlink

    startup, engine = note.kit / "startup", note.kit / "engine"
    engine.mkdir(exist_ok=True)
    host, _, port = note.address.rpartition(":")
    nodes = RefusedNodes(lambda: json.loads((startup / SITES_FILE).read_text("utf-8")),
                         functools.partial(report_second_session, note.kit))
    uvicorn.run = _behind_the_gate(uvicorn.run, nodes)
    threading.Thread(target=_watch_sites, args=(note,), daemon=True).start()
    sys.argv = ["flower-superlink", "--host", "127.0.0.1" if host in ("localhost", "127.0.0.1") else "0.0.0.0",
                "--port", port, "--database", str(engine / "state.db"), "--enable-supernode-auth",
                "--ssl-certfile", str(startup / SERVER_CERTIFICATE), "--ssl-keyfile", str(startup / SERVER_KEY),
                "--ssl-ca-certfile", str(startup / AUTHORITY_FILE), "--isolation", "process",
                "--superexec-auth-secret-file", str(startup / SECRET_FILE), "--disable-runtime-dependency-installation"]
    flower_superlink()


def _behind_the_gate(run: Any, nodes: RefusedNodes) -> Any:
    @functools.wraps(run)
    def run_behind_the_gate(app: Any, **settings: Any) -> None:
        run(app=Gate(app, nodes), **{**settings, "access_log": False})

    return run_behind_the_gate


def _watch_sites(note: KitNote) -> None:
    from resolvent.federation.engines.flower.link import SuperLink

    signs: dict[str, float] = {}
    file = note.kit / "startup" / SITES_FILE
    while True:
        try:
            registered = file.read_bytes()
            with SuperLink(note) as link:
                link.register_sites()
                while file.read_bytes() == registered:  # otherwise a site was added or removed, or has a new key
                    signs |= dict.fromkeys(link.connected_sites(), time.time())
                    write_signs(note.kit, signs)
                    time.sleep(_WATCH)
        except Exception as error:  # the SuperLink is not ready
            if knows_connections(note.kit):
                print(f"resolvent: the sites cannot be queried: {type(error).__name__}: {error}", flush=True)
            time.sleep(_WATCH)


def forget_messages_of_ended_runs() -> None:
    """Let a SuperNode forget a message whose run ends during its transfer.

    It forgets one after an ``Exception``, and Flower's class for this case is none: the site would wait for the rest.
    """
    from flwr.supercore.run import RunNotRunningException

    RunNotRunningException.__bases__ = (Exception,)


def run_supernode(note: KitNote, port: str, secret: str) -> None:
    """Run the SuperNode of a site. Another process of the site answers the messages."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    from resolvent.federation.engines.flower.link import retry_soon

    # The loop of a SuperNode sleeps for 3 seconds if it has no message, and for 0.5 seconds if it has no reply, which
    # would be most of the duration of a round.
    # It sleeps after each answer of the SuperLink, which is a sign that it is connected.
    last = -math.inf

    def sleep(seconds: float) -> None:
        nonlocal last
        if time.monotonic() - last > _WATCH:
            last = time.monotonic()
            write_signs(note.kit, {note.name: time.time()})
        time.sleep(min(seconds / 10, _MAX_PAUSE))

    start_client_internal.time = SimpleNamespace(sleep=sleep, time=time.time, monotonic=time.monotonic)
    retry_soon(start_client_internal)
    forget_messages_of_ended_runs()
    startup = note.kit / "startup"
    sys.argv = ["flower-supernode", "--superlink", note.address, "--root-certificates", str(startup / AUTHORITY_FILE),
                "--auth-supernode-private-key", str(startup / NODE_KEY), "--isolation", "process",
                "--superexec-auth-secret-file", secret, "--host", "127.0.0.1", "--port", port]
    try:
        flower_supernode()
    finally:
        if last < 0 and not connection_problem(note):  # the SuperLink has answered, and has not activated the node
            report_second_session(note.kit, note.name, is_refused_here=True)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    participant = KitNote(Path(sys.argv[2]))
    if participant.kind == "server":
        run_superlink(participant)
    else:
        run_supernode(participant, sys.argv[3], sys.argv[4])
