"""Kits for a federation over Flower: for the lead and each site a key with a certificate, and the app for Flower.

SuperLink and SuperNodes, with their certificates and keys, are those of a federation that exists. With the kits, lead
and sites sign what they send, so that the programs between them are not trusted.
"""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resolvent.data.files.atomic_files import write_secret, write_text
from resolvent.errors import InputError
from resolvent.federation.protocol.kits import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, LEAD_ROLE, write_kit_note

APP = "app"  # a folder in the lead's kit
_AUTHORITY_FOLDER, _AUTHORITY_KEY = "authority", "authority.key"
_CERTIFICATE_DAYS = 360
_PROJECT = """\
[project]
name = "resolvent-relay"
version = "1.0.0"
description = "Moves messages between the processes of Resolvent"
license = "Apache-2.0"
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "resolvent"

[tool.flwr.app.components]
serverapp = "relay:server"
clientapp = "relay:client"

[tool.flwr.app.config]
door = ""
"""


def make_flower_kits(folder: Path, *, name: str, address: str, sites: Sequence[str], lead: str) -> dict[str, Path]:
    """Make a kit for the lead and for each site, and write the app into the lead's kit.

    If the folder already has kits, those of new sites are added, and the other kits stay as they are.

    Args:
        address: the name of the SuperLink in the lead's configuration of Flower.

    Returns:
        Name of a new kit -> its folder.
    """
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise InputError("cryptography is not installed: pip install 'resolvent[secure]'") from error
    authority, kits = Authority(folder / _AUTHORITY_FOLDER, name), {}
    for participant in (lead, *sites):
        kit = folder / participant
        if not kit.exists():
            kit.mkdir(mode=0o700)
            authority.certify(participant, kit / "startup", role=LEAD_ROLE if participant == lead else "")
            write_kit_note(kit, kind="person" if participant == lead else "site", name=participant, address=address)
            kits[participant] = kit
    app = folder / lead / APP
    app.mkdir(exist_ok=True)
    write_text(app / "pyproject.toml", _PROJECT)
    write_text(app / "relay.py", Path(__file__).with_name("relay.py").read_text("utf-8"))
    return kits


class Authority:
    """The certificate authority of a federation.

    Args:
        folder: the folder with its private key; made if it is absent.
        name: of the federation, for a new authority.
    """

    def __init__(self, folder: Path, name: str) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key_file, certificate_file = folder / _AUTHORITY_KEY, folder / AUTHORITY_FILE
        if not certificate_file.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
            key = ec.generate_private_key(ec.SECP256R1())
            write_secret(key_file, _private_text(key))
            usage = x509.KeyUsage(
                digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
                key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
                decipher_only=False)
            subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
            made = _certificate(subject, subject, key.public_key(), key, 10 * _CERTIFICATE_DAYS, [
                (x509.BasicConstraints(ca=True, path_length=0), True), (usage, True)])
            write_text(certificate_file, made)
        self._key: Any = load_pem_private_key(key_file.read_bytes(), None)
        self._text = certificate_file.read_text("utf-8")
        self._name = x509.load_pem_x509_certificate(self._text.encode()).subject

    def certify(self, name: str, folder: Path, *, role: str = "", hosts: Sequence[str] = ()) -> None:
        """Write a private key and its certificate for a participant, and the certificate of the authority.

        Args:
            role: the role of a person.
            hosts: names and addresses of a server, whose identity the certificate proves.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        folder.mkdir(parents=True)
        key = ec.generate_private_key(ec.SECP256R1())
        write_secret(folder / KEY_FILE, _private_text(key))
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        of_server = [(names, False), (x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), False)]
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name),
                             *([x509.NameAttribute(x509.NameOID.UNSTRUCTURED_NAME, role)] if role else [])])
        write_text(folder / CERTIFICATE_FILE, _certificate(
            subject, self._name, key.public_key(), self._key, _CERTIFICATE_DAYS,
            [(x509.BasicConstraints(ca=False, path_length=None), True), *(of_server if hosts else [])]))
        write_text(folder / AUTHORITY_FILE, self._text)


def _general_name(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private_text(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as ser

    text: bytes = key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, ser.NoEncryption())
    return text


def _certificate(subject: Any, issuer: Any, public_key: Any, signing_key: Any, days: int,
                 extensions: Sequence[tuple[Any, bool]]) -> str:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)  # clocks of the sites differ
    builder = (x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
               .serial_number(x509.random_serial_number()).not_valid_before(begin)
               .not_valid_after(begin + datetime.timedelta(days=days))
               .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
               .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
                              critical=False))
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    signed = builder.sign(signing_key, hashes.SHA256())
    return str(signed.public_bytes(serialization.Encoding.PEM), "ascii")
