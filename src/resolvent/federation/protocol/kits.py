"""Kits: the folder of a participant, with its keys and the server's address."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

from resolvent.data.files.atomic_files import write_text
from resolvent.data.files.folder_lock import RunningError, locked
from resolvent.errors import InputError
from resolvent.federation.protocol.revocation import RevokedKeys
from resolvent.federation.protocol.signatures import Signer, check_validity, sign, verify

Engine: TypeAlias = Literal["nvflare", "flower"]
"""The program that connects the participants."""

SERVER_KIT = "server"
_RUNNING = "running"  # its lock is in the kit
_NOTE_FILE = "kit.json"  # the note in kits for Flower
# Private key and certificate of the participant, and the authority's certificate, in the folder ``startup``.
KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE = "client.key", "client.crt", "rootCA.pem"
LEAD_ROLE = "lead"  # in a certificate
_TITLES = {"server": "the server", "site": "a site", "person": "a person, such as the lead"}
_NVFLARE_FILES = {"fed_server.json": "server", "fed_client.json": "site", "fed_admin.json": "person"}


class KitNote:
    """What a kit says about its participant.

    Attributes:
        engine: ``nvflare`` or ``flower``.
        kind: ``server``, ``site`` or ``person``.
        address: host and port of the server; over Flower the name of the SuperLink in the lead's configuration.
    """

    def __init__(self, kit: Path) -> None:
        self.kit = kit.expanduser().resolve()
        startup = self.kit / "startup"
        if (startup / _NOTE_FILE).is_file():
            content = _read(startup / _NOTE_FILE)
            self.kind, self.name, self.address = (str(content[key]) for key in ("kind", "name", "address"))
            self.engine: Engine = "flower"
            return
        self.engine = "nvflare"
        file = next((file for file in _NVFLARE_FILES if (startup / file).is_file()), None)
        if file is None:
            raise InputError(f"{kit} is not a kit: name a folder that 'resolvent lead kits' made")
        self.kind, content = _NVFLARE_FILES[file], _read(startup / file)
        if self.kind == "person":
            person = content["admin"]
            self.name, self.address = person["username"], f"{person['host']}:{person['port']}"
        else:
            self.address = content["servers"][0]["service"]["target"]
            self.name = "server" if self.kind == "server" else content["client"]["fqsn"]

    def sign(self, content: bytes) -> dict[str, str]:
        """Sign bytes as the lead, or as a site."""
        startup = self.kit / "startup"
        return sign(startup / KEY_FILE, startup / CERTIFICATE_FILE, content)

    def verify(self, content: bytes, signature: Any) -> str:
        """Check the signature of the lead; returns the lead's name."""
        signer = self._verified(content, signature)
        if signer.role != LEAD_ROLE:
            raise InputError(f"{signer.name} has signed the plan, and is not the lead of this federation")
        return signer.name

    def verify_participant(self, content: bytes, signature: Any) -> str:
        """Check the signature of any participant of this federation; returns its name."""
        return self._verified(content, signature).name

    def _verified(self, content: bytes, signature: Any) -> Signer:
        signer = verify(self.kit / "startup" / AUTHORITY_FILE, content, signature)
        RevokedKeys(self.kit).check(signer.name, signer.key)
        return signer

    def verify_site(self, site: str, content: bytes, signature: Any) -> None:
        """Check the signature of a site, with the kit that makes the server's steps."""
        signer = self.verify_participant(content, signature)
        if signer != site:
            raise InputError(f"a message of {site} has the signature of {signer}")


def kit_note(kit: Path, kind: str) -> KitNote:
    """What a kit says about its participant."""
    note = KitNote(kit)
    if note.kind != kind:
        raise InputError(f"{kit} is the kit of {_TITLES[note.kind]}, and this command needs that of {_TITLES[kind]}")
    check_validity(kit / "startup")
    return note


@contextlib.contextmanager
def started_once(note: KitNote) -> Iterator[None]:
    """Hold the lock of a kit: two processes with one kit would take turns in answering for one participant."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(note.kit / _RUNNING))
        except RunningError as error:
            raise RunningError(f"the kit {note.kit} is started already, by process {error.holder}: {note.name} runs "
                               "once; end that process first", error.holder) from None
        yield


def is_started(note: KitNote) -> bool:
    """Whether a process has started the kit, see ``started_once``."""
    try:
        with locked(note.kit / _RUNNING):
            return False
    except RunningError:
        return True


def write_kit_note(kit: Path, *, kind: str, name: str, address: str) -> None:
    """Write what a kit for Flower says about its participant, see ``KitNote``."""
    write_text(kit / "startup" / _NOTE_FILE,
               json.dumps({"engine": "flower", "kind": kind, "name": name, "address": address}, indent=2))


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content
