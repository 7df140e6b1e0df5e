"""Components of NVIDIA FLARE that notice when two processes connect to the server as one site.

The engine gives the connection of a site to the process that registers last, without a message. Here the server refuses
a site that registers from another folder or machine while the first process is connected. A site that starts again in
its folder is not refused: the lock of its kit excludes a second process there.
"""

import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import NotAuthenticated
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.federation.protocol.connections import folder_id, report_second_session, write_signs
from resolvent.federation.protocol.kits import KitNote

_FOLDER_PROPERTY, _PROOF_PROPERTY = "resolvent_folder", "resolvent_proof"
_CONNECTED = 30.0  # seconds after the last sign of a site, which sends one every 10 s


class SiteSession(FLComponent):
    """Tells the server from which folder a site is connected, see ``folder_id``, and the kit whether it is."""

    def __init__(self, kit: str) -> None:
        super().__init__()
        self._note = KitNote(Path(kit))
        self._folder_id = folder_id(Path(kit))
        self._proof = self._note.sign(_signed(self._folder_id))

    @override
    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type in (EventType.BEFORE_CLIENT_REGISTER, EventType.BEFORE_CLIENT_HEARTBEAT):
            fl_ctx.set_prop(_FOLDER_PROPERTY, self._folder_id, private=False, sticky=False)
            fl_ctx.set_prop(_PROOF_PROPERTY, self._proof, private=False, sticky=False)
        elif event_type == EventType.AFTER_CLIENT_REGISTER and not fl_ctx.get_prop(FLContextKey.CLIENT_TOKEN):
            report_second_session(self._note.kit, self._note.name, is_refused_here=True)
        elif event_type in (EventType.AFTER_CLIENT_REGISTER, EventType.AFTER_CLIENT_HEARTBEAT):
            write_signs(self._note.kit, {self._note.name: time.time()})


def _signed(folder: str) -> bytes:
    return f"session {folder}".encode()


class ServerSessions(FLComponent):
    """Refuses a second session of a site at the server, and reports it; refuses keys that are revoked.

    NVIDIA FLARE has no list of revoked certificates. It can disable a site by its name, which ends the connection: this
    happens at the first sign of a site with a revoked key while no job runs, unless a process with a newer key is
    connected. A job would wait for ever for the end of a site that was disabled; until its end, the server's program
    drops the replies of the site. A process that registers with a valid key enables the name again.
    """

    def __init__(self, kit: str) -> None:
        super().__init__()
        self._kit = Path(kit)
        self._note = KitNote(self._kit)
        self._lock = threading.Lock()
        self._reported: set[tuple[str, str]] = set()  # a process that is refused is started again and again
        self._signs: dict[str, float] = {}  # site -> time of the last sign, for ``status``
        self._folders: dict[str, tuple[str, float]] = {}  # site -> its folder, and time of the last sign

    @override
    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type not in (EventType.CLIENT_REGISTER_RECEIVED, EventType.CLIENT_HEARTBEAT_RECEIVED):
            return
        peer = fl_ctx.get_peer_context()
        site, folder = (None, None) if peer is None else (peer.get_identity_name(), peer.get_prop(_FOLDER_PROPERTY))
        if not isinstance(site, str) or not isinstance(folder, str):  # a person
            return
        is_registration = event_type == EventType.CLIENT_REGISTER_RECEIVED
        if not self._has_valid_key(site, folder, peer.get_prop(_PROOF_PROPERTY), fl_ctx, is_registration):
            return
        with self._lock:
            known, last = self._folders.get(site, (folder, 0.0))
            is_second = known != folder and time.monotonic() - last < _CONNECTED
            if not is_second and not is_registration:
                self._folders[site] = folder, time.monotonic()
            is_new = is_second and (site, folder) not in self._reported
            if is_new:
                self._reported.add((site, folder))
            if not is_second:
                self._signs[site] = time.time()
                write_signs(self._kit, self._signs)
        if is_new:
            report_second_session(self._kit, site)
        if is_second and is_registration:
            raise NotAuthenticated(f"{site} is connected already, from another folder or machine: a kit runs once")

    def _has_valid_key(self, site: str, folder: str, proof: Any, fl_ctx: FLContext, is_registration: bool) -> bool:
        """Whether a site proves that it has a valid key; the connection of one that does not ends."""
        engine = fl_ctx.get_engine()
        clients = engine.server.client_manager
        try:
            self._note.verify_site(site, _signed(folder), proof)
        except InputError as error:
            if is_registration:
                raise NotAuthenticated(str(error)) from error
            with self._lock:
                is_connected = self._folders.get(site, ("", 0.0))[0] == folder and not engine.run_processes
                if is_connected:
                    del self._folders[site]
            if is_connected:
                print(f"resolvent: {site} is disconnected: {error}", flush=True)
                clients.disable_client(site)
            return False
        if is_registration and clients.is_client_disabled(site):
            clients.enable_client(site)
        return True
