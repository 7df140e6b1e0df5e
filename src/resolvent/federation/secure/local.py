"""Certificates within one process, for rehearsals and tests: they prove nothing to another process."""

from collections.abc import Iterable, Mapping
from typing import Any

from resolvent.errors import InputError
from resolvent.federation.secure.primitives import Identity, SiteKeys, verify_signature


def local_identities(names: Iterable[str]) -> dict[str, Identity]:
    """Name of a participant -> its certificate; each knows the keys of all."""
    keys = {name: SiteKeys(name.encode()) for name in names}

    def verify(content: bytes, signature: Any) -> str:
        signer = signature.get("name") if isinstance(signature, Mapping) else None
        if signer not in keys or not verify_signature(keys[signer].signing, content, signature.get("signature")):
            raise InputError("it has no valid signature of this federation")
        return str(signer)

    def identity(name: str) -> Identity:
        return Identity(lambda content: {"name": name, "signature": keys[name].sign(content)}, verify)

    return {name: identity(name) for name in keys}
