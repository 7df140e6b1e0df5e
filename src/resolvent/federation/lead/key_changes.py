"""The lead revokes the key of a participant, or gives it a new one, in the folder of a federation's kits."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from resolvent.data.files.atomic_files import write_text
from resolvent.errors import InputError, alternatives, quote
from resolvent.federation.lead.engines import make_federation_kits
from resolvent.federation.lead.lead import has_sites, read_sites, write_sites
from resolvent.federation.protocol.files import Consortium
from resolvent.federation.protocol.kits import CERTIFICATE_FILE, SERVER_KIT, KitNote
from resolvent.federation.protocol.revocation import REVOKED_FILE, RevokedList, key_id

_AUTHORITY, _OLD_KITS = "authority", "revoked"


class KeyChange(NamedTuple):
    """What was changed.

    Attributes:
        old: the folder to which the old kit was moved; None if it was moved before.
        new: the new kit; None if the participant is excluded.
        files: the files that the running server needs, in its kit.
        sites_need_list: whether the sites, too, need ``revoked.json``, because the key was that of a lead.
    """

    old: Path | None
    new: Path | None
    files: tuple[Path, ...]
    sites_need_list: bool


def revoke_key(folder: Path, plan: Consortium, name: str, reason: str) -> KeyChange:
    """Exclude a participant: its key is refused from now on, and it has no other."""
    return _change(folder, plan, name, reason, is_excluded=True)


def rotate_key(folder: Path, plan: Consortium, name: str, reason: str) -> KeyChange:
    """Give a participant a kit with a new key; the old key is refused from now on. Arguments as ``revoke_key``."""
    if name not in (*plan.sites, plan.lead, *plan.members):
        raise InputError(f"the consortium has no participant {quote(name)}"
                         f"{alternatives(name, (*plan.sites, plan.lead, *plan.members))}")
    return _change(folder, plan, name, reason, is_excluded=False)


def check_not_revoked(folder: Path, plan: Consortium) -> None:
    """Check that no participant of a consortium is excluded: it would get a new kit by mistake."""
    excluded = [name for name in RevokedList.read(folder / _AUTHORITY / REVOKED_FILE).excluded
                if name in (*plan.sites, plan.lead, *plan.members)]
    if excluded:
        raise InputError(f"{', '.join(excluded)} was excluded from the federation: remove the name from the file, or "
                         "give it a new key with resolvent lead rotate")


def _change(folder: Path, plan: Consortium, name: str, reason: str, *, is_excluded: bool) -> KeyChange:
    kit, list_file = folder / name, folder / _AUTHORITY / REVOKED_FILE
    if name == SERVER_KIT:
        raise InputError("the server's key cannot be changed in a running federation: make new kits for all "
                         "participants in an empty folder")
    revoked = RevokedList.read(list_file)
    if not kit.is_dir() and (is_excluded or name not in revoked.excluded):
        raise InputError(f"{folder} has no kit of {quote(name)}: run the command where the kits were made, and name a "
                         "participant of the consortium")
    old = None
    if kit.is_dir():
        key = _key_of(kit)
        revoked = revoked.revoke(name, key, reason, is_excluded=is_excluded)
        old = folder / _OLD_KITS / f"{name}-{key[:8]}"
    else:
        revoked = revoked._replace(excluded=[other for other in revoked.excluded if other != name])
    revoked.write(list_file)
    if old is not None:
        old.parent.mkdir(exist_ok=True)
        kit.rename(old)
    for certificates in (folder / _AUTHORITY).rglob("cert.json"):  # where NVIDIA FLARE keeps the keys that it has made
        _forget(certificates, name)
    if is_excluded:
        _remove_site(folder, name)
    new = None if is_excluded else make_federation_kits(folder, plan)[name]
    for startup in folder.glob("*/startup"):
        revoked.write(startup / REVOKED_FILE)
    server = folder / (plan.lead if plan.engine == "flower" else SERVER_KIT)  # whose kit makes the server's steps
    return KeyChange(old, new, (server / "startup" / REVOKED_FILE,), "@" in name)


def _remove_site(folder: Path, name: str) -> None:
    """Remove a site from the lists of sites of persons."""
    for kit in (path for path in folder.iterdir() if has_sites(path)):
        content = read_sites(kit)
        if name in content:
            write_sites(kit, None, [site for site in content if site != name])


def _key_of(kit: Path) -> str:
    """The id of a kit's key."""
    from cryptography import x509

    certificate = KitNote(kit).kit / "startup" / CERTIFICATE_FILE
    return key_id(x509.load_pem_x509_certificate(certificate.read_bytes()).public_key())


def _forget(file: Path, name: str) -> None:
    """Remove the key of a participant from the list of those that were made, so that it gets a new one."""
    content: dict[str, Any] = json.loads(file.read_text("utf-8"))
    if content.pop(name, None) is not None:
        write_text(file, json.dumps(content))
        file.chmod(0o600)
