"""Keys that are no longer valid: a participant has left the federation, its key was stolen, or it has a newer kit.

The list is ``revoked.json`` in the folder ``startup`` of kits. It is read again when it has changed, so that a copy
takes effect in a running federation. A participant that is excluded gets no message, and none of its messages counts. A
key that is revoked proves nothing any more; its participant can have a newer one.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from resolvent.data.files.atomic_files import write_text
from resolvent.errors import InputError, shorten

REVOKED_FILE = "revoked.json"
REVOKED = ("its key is revoked: it gets no message, and its messages do not count. Continue without it: name the "
           "others with --sites, or --set federation.quorum")


class RevokedList(NamedTuple):
    """The content of the list.

    Attributes:
        keys: id of a key, see ``key_id`` -> name of its participant, time, reason.
        excluded: names of the participants that have no valid key.
    """

    keys: Mapping[str, Mapping[str, str]] = {}
    excluded: Sequence[str] = ()

    def revoke(self, name: str, key: str, reason: str, *, is_excluded: bool) -> "RevokedList":
        """The list with one more key.

        Args:
            is_excluded: whether the participant gets no new key.
        """
        entry = {"name": name, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "reason": reason}
        others = [other for other in self.excluded if other != name]
        return RevokedList({**self.keys, key: entry}, [*others, name] if is_excluded else others)

    def write(self, path: Path) -> None:
        """Write the list."""
        write_text(path, json.dumps({"keys": dict(self.keys), "excluded": list(self.excluded)}, indent=2))

    @classmethod
    def read(cls, path: Path) -> "RevokedList":
        """Read the list; without a file nothing is revoked."""
        if not path.is_file():
            return cls()
        try:
            content = json.loads(path.read_text("utf-8"))
            return cls({str(key): dict(entry) for key, entry in content["keys"].items()},
                       [str(name) for name in content["excluded"]])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} cannot be read ({shorten(error)}): copy it again from the folder of the "
                             "authority") from error


class RevokedKeys:
    """The list of a kit, as it is at any moment."""

    def __init__(self, kit: Path) -> None:
        self._path = kit / "startup" / REVOKED_FILE
        self._state: tuple[int, int, int] | None = None
        self._list = RevokedList()

    def current(self) -> RevokedList:
        """The list."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            self._state, self._list = None, RevokedList()
            return self._list
        state = stat.st_mtime_ns, stat.st_size, stat.st_ino
        if state != self._state:
            self._list, self._state = RevokedList.read(self._path), state
        return self._list

    def check(self, name: str, key: str) -> None:
        """Check that a participant's key is valid."""
        current = self.current()
        if key in current.keys or name in current.excluded:
            raise InputError(f"the key of {name} is revoked")


def key_id(key: Any) -> str:
    """The id of a public key: SHA-256 of its encoding (SubjectPublicKeyInfo, DER)."""
    from cryptography.hazmat.primitives import hashes, serialization

    digest = hashes.Hash(hashes.SHA256())
    digest.update(key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))
    return str(digest.finalize().hex())
