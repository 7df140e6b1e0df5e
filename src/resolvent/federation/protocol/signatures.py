"""Signatures with the keys and certificates (X.509) of a federation's kits.

The functions need the package ``cryptography``, which both engines install.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from resolvent.errors import InputError
from resolvent.federation.protocol.revocation import key_id


class Signer(NamedTuple):
    """Whose certificate a signature has.

    Attributes:
        role: the role of a person.
        key: the id of the key, see ``revocation.key_id``.
    """

    name: str
    role: str
    key: str


def sign(key_file: Path, certificate_file: Path, content: bytes) -> dict[str, str]:
    """Sign bytes with a private key; returns the certificate (PEM) and the signature (hexadecimal)."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

    key = _private_key(key_file.read_bytes())
    signature = (key.sign(content, padding.PKCS1v15(), hashes.SHA256()) if isinstance(key, rsa.RSAPrivateKey)
                 else key.sign(content, ec.ECDSA(hashes.SHA256())))
    return {"certificate": certificate_file.read_text("utf-8"), "signature": signature.hex()}


@lru_cache(maxsize=4)
def _private_key(text: bytes) -> Any:
    """The private key of a file; it is checked once, which takes longer than a signature."""
    from cryptography.hazmat.primitives import serialization

    return serialization.load_pem_private_key(text, None)


def check_validity(folder: Path) -> None:
    """Check that the certificates of a folder are valid by the clock of this machine: engines say it late, or never."""
    clock = datetime.now(UTC)
    for path in sorted([*folder.glob("*.crt"), *folder.glob("*.pem")]):
        from cryptography import x509

        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if not first <= clock <= last:
            raise InputError(f"the certificate {path} is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} "
                             f"UTC, and the clock of this machine says {clock:%Y-%m-%d %H:%M}: correct the clock, or, "
                             "if it is right, make new kits")


def verify(authority_file: Path, content: bytes, signature: Any) -> Signer:
    """Check a signature; returns whose it is.

    Args:
        authority_file: the certificate of the federation's authority.
        content: the bytes that were signed.
        signature: what ``sign`` has returned, as it has arrived.
    """
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

    if not isinstance(signature, Mapping):
        raise InputError("it is not signed")
    try:
        certificate = x509.load_pem_x509_certificate(str(signature["certificate"]).encode())
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority_file.read_bytes()))
        key: Any = certificate.public_key()
        data = bytes.fromhex(str(signature["signature"]))
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(data, content, padding.PKCS1v15(), hashes.SHA256())
        else:
            key.verify(data, content, ec.ECDSA(hashes.SHA256()))
    except (KeyError, ValueError, TypeError, AttributeError, InvalidSignature) as error:
        raise InputError(f"it has no valid signature of this federation ({type(error).__name__})") from error
    if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
        raise InputError("the certificate of the signature has expired, or is not valid yet: check the clock, or make "
                         "new kits")

    def attribute(oid: Any) -> str:
        return next((str(item.value) for item in certificate.subject.get_attributes_for_oid(oid)), "")

    return Signer(attribute(x509.NameOID.COMMON_NAME), attribute(x509.NameOID.UNSTRUCTURED_NAME), key_id(key))
