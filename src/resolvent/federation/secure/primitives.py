"""The cryptography of secure sums: keys, derived keys, streams, sealed bytes and shares, all by kept libraries.

Keys, HKDF, ciphers and signatures are those of ``cryptography``; Shamir's shares are those of ``pycryptodome``. Both
are imported when they are used: the extra ``secure`` installs them.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError

__all__ = ["SEED_BYTES", "Identity", "SiteKeys", "add_stream", "combine_shares", "commitment", "derive", "open_sealed",
           "seal", "split_secret", "stream", "verify_signature"]

SEED_BYTES = 16  # of a secret that Shamir's scheme shares, over the field of 2^128 elements
_NONCE_BYTES = 12
_BLOCK = 2**16
_ZEROS = memoryview(bytes(_BLOCK))


class Identity(NamedTuple):
    """The certificate of a participant.

    Attributes:
        sign: signs bytes with the key of the certificate; returns plain values.
        verify: checks bytes and a signature against the federation's authority; returns whose it is, or raises
            ``InputError``.
    """

    sign: Callable[[bytes], Mapping[str, str]]
    verify: Callable[[bytes, Any], str]


class SiteKeys:
    """The key pairs of a site for one run: X25519 for secrets with other sites, Ed25519 for its signatures of lists.

    Args:
        secret: random bytes, which the site stores, and from which both keys are derived.
    """

    def __init__(self, secret: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._exchange = X25519PrivateKey.from_private_bytes(derive(secret, "exchange"))
        self._signing = Ed25519PrivateKey.from_private_bytes(derive(secret, "signing"))
        self.exchange: str = self._exchange.public_key().public_bytes_raw().hex()
        self.signing: str = self._signing.public_key().public_bytes_raw().hex()

    def shared_secret(self, exchange: str) -> bytes:
        """The secret with the site that has this public key."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            secret: bytes = self._exchange.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(exchange)))
        except ValueError as error:
            raise InputError("a site has no valid public key") from error
        return secret

    def sign(self, content: bytes) -> str:
        """A signature of bytes, hexadecimal."""
        signature: str = self._signing.sign(content).hex()
        return signature


def verify_signature(signing: str, content: bytes, signature: Any) -> bool:
    """Whether a signature of ``SiteKeys.sign`` is valid; both texts are as they have arrived."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(signing)).verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def derive(secret: bytes, *context: Any, length: int = 32) -> bytes:
    """A key for one purpose: HKDF of a secret with SHA-256.

    Args:
        secret: secret bytes.
        context: plain values that name the purpose; other values give an independent key.
        length: number of bytes.
    """
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = json.dumps(["resolvent secure sums", *context]).encode()
    key: bytes = HKDF(SHA256(), length, salt=None, info=info).derive(secret)
    return key


def stream(seed: bytes, count: int, dtype: str) -> NDArray[np.unsignedinteger]:
    """Pseudo-random integers modulo 2^32 or 2^64, from AES-128 in counter mode.

    Args:
        seed: ``SEED_BYTES`` secret bytes, the key of this stream alone.
        dtype: ``<u4`` or ``<u8``.
    """
    values = np.zeros(count, dtype)
    add_stream(values, seed, 1)
    return values


def add_stream(values: NDArray[np.unsignedinteger], seed: bytes, sign: int) -> None:
    """values + sign * stream modulo 2^bits, in place; by blocks that stay in the processor's cache."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    encryptor = Cipher(algorithms.AES128(seed), modes.CTR(bytes(SEED_BYTES))).encryptor()
    add = np.add if sign > 0 else np.subtract
    block = np.empty(_BLOCK + SEED_BYTES, np.uint8)  # the library asks for room for one more block of the cipher
    for start in range(0, len(values), _BLOCK // values.itemsize):
        part = values[start:start + _BLOCK // values.itemsize]
        size = part.nbytes
        encryptor.update_into(_ZEROS[:size], block)
        add(part, block[:size].view(values.dtype), out=part)


def seal(key: bytes, content: bytes, context: str) -> str:
    """Encrypted and authenticated bytes (ChaCha20-Poly1305), hexadecimal; only the same key and context open them."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = secrets.token_bytes(_NONCE_BYTES)
    sealed: bytes = nonce + ChaCha20Poly1305(key).encrypt(nonce, content, context.encode())
    return sealed.hex()


def open_sealed(key: bytes, sealed: Any, context: str) -> bytes:
    """The content of ``seal``."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        data = bytes.fromhex(sealed)
        content: bytes = ChaCha20Poly1305(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], context.encode())
    except (InvalidTag, ValueError, TypeError) as error:
        raise InputError("a sealed share was changed, or is for another site, run or phase") from error
    return content


def split_secret(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shamir's shares of a secret of ``SEED_BYTES`` bytes: ``threshold`` of them have it, fewer say nothing."""
    from Crypto.Protocol.SecretSharing import Shamir

    return [share for _, share in Shamir.split(threshold, count, secret, ssss=False)]


def combine_shares(shares: Mapping[int, bytes]) -> bytes:
    """The secret of exactly ``threshold`` shares, by their positions in ``split_secret``."""
    from Crypto.Protocol.SecretSharing import Shamir

    secret: bytes = Shamir.combine([(position + 1, share) for position, share in sorted(shares.items())], ssss=False)
    return secret


def commitment(seed: bytes, *context: Any) -> str:
    """What a site publishes about a seed before it reveals it: SHA-256, hexadecimal."""
    return hashlib.sha256(json.dumps(["seed", seed.hex(), *context]).encode()).hexdigest()


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
