"""Kits for a federation over Flower: certificate and keys of the server, and one private key for each site.

The server proves its identity with a certificate of the federation's own authority (TLS). A site signs its requests
with its private key, and the server knows the public keys of all sites.
"""

import datetime
import ipaddress
import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resolvent.data.files.atomic_files import write_text
from resolvent.errors import InputError
from resolvent.federation.protocol.kits import SERVER_KIT, write_kit_note

# Files of the folder ``startup`` of a kit.
AUTHORITY_FILE, SERVER_CERTIFICATE, SERVER_KEY = "authority.pem", "server.pem", "server.key"
SITE_CERTIFICATE, SITE_KEY = "site.pem", "site.key"
NODE_KEY, SECRET_FILE, SITES_FILE = "node.key", "secret", "sites.json"
_AUTHORITY_FOLDER, _AUTHORITY_KEY = "authority", "authority.key"
_CERTIFICATE_DAYS = 360
_LOOPBACK = ("localhost", "127.0.0.1")  # the names by which programs on the server's machine reach it


def make_flower_kits(folder: Path, *, name: str, host: str, port: int, sites: Sequence[str]) -> dict[str, Path]:
    """Make a kit for the server and for each site.

    If the folder already has kits, those of new sites are added, and the list of sites in the server's kit is written
    again. The other kits stay as they are. A site that was removed from the list and is named again has the key of its
    kit.

    Returns:
        Name of a new kit -> its folder; the server's is ``server``.
    """
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise InputError("Flower is not installed: pip install 'resolvent[flower]'") from error
    authority, address, kits = _Authority(folder / _AUTHORITY_FOLDER, name), f"{host}:{port}", {}
    server = folder / SERVER_KIT
    if not server.exists():
        _begin_kit(server, authority)
        authority.certify(SERVER_KIT, server / "startup", (SERVER_KEY, SERVER_CERTIFICATE), (host, *_LOOPBACK))
        _write_private(server / "startup" / SECRET_FILE, secrets.token_bytes(32))
        write_kit_note(server, kind="server", name=SERVER_KIT, address=address)
        kits[SERVER_KIT] = server
    list_file = server / "startup" / SITES_FILE
    keys: dict[str, str] = json.loads(list_file.read_text("utf-8")) if list_file.is_file() else {}
    for site in sites:
        kit = folder / site
        if not kit.exists():
            _begin_kit(kit, authority)
            keys[site] = _write_node_key(kit / "startup" / NODE_KEY)
            authority.certify(site, kit / "startup", (SITE_KEY, SITE_CERTIFICATE))
            write_kit_note(kit, kind="site", name=site, address=address)
            kits[site] = kit
        elif site not in keys:  # the site was removed from the list, or an earlier command did not finish
            keys[site] = _public_text(public_key_of(kit))
    write_text(list_file, json.dumps({site: keys[site] for site in sites}, indent=2))
    return kits


def _begin_kit(kit: Path, authority: "_Authority") -> None:
    (kit / "startup").mkdir(parents=True)
    kit.chmod(0o700)
    write_text(kit / "startup" / AUTHORITY_FILE, authority.certificate_text)


def _write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def _write_node_key(path: Path) -> str:
    """Write a new private key, and return its public key (PEM)."""
    from cryptography.hazmat.primitives import serialization as ser
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.OpenSSH, ser.NoEncryption()))
    return _public_text(key.public_key())


def public_key_of(kit: Path) -> Any:
    """The public key of a site's kit."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        return load_ssh_private_key((kit / "startup" / NODE_KEY).read_bytes(), None).public_key()
    except (OSError, ValueError) as error:
        raise InputError(f"{kit} is not a complete kit, and the server's kit does not list the site {kit.name}: remove "
                         "the folder, so that a new kit is made") from error


def _public_text(key: Any) -> str:
    from cryptography.hazmat.primitives import serialization as ser

    public = key.public_bytes(ser.Encoding.PEM, ser.PublicFormat.SubjectPublicKeyInfo)
    return str(public, "ascii")


class _Authority:
    """The certificate authority of a federation, which signs the server's certificate.

    Args:
        folder: the folder with its private key; made if it is absent.
    """

    def __init__(self, folder: Path, name: str) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key_file, certificate_file = folder / _AUTHORITY_KEY, folder / AUTHORITY_FILE
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        if not certificate_file.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
            key = ec.generate_private_key(ec.SECP256R1())
            _write_private(key_file, _private_text(key))
            usage = x509.KeyUsage(
                digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
                key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
                decipher_only=False)
            made = _certificate(self._name, self._name, key.public_key(), key, 10 * _CERTIFICATE_DAYS, [
                (x509.BasicConstraints(ca=True, path_length=0), True), (usage, True)])
            write_text(certificate_file, made)
        self._key: Any = load_pem_private_key(key_file.read_bytes(), None)
        self.certificate_text = certificate_file.read_text("utf-8")

    def certify(self, name: str, folder: Path, files: tuple[str, str], hosts: Sequence[str] = ()) -> None:
        """Write a private key and its certificate for a participant.

        Args:
            hosts: names and addresses of the server, whose identity the certificate proves; none for a site, which
                signs with it.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        _write_private(folder / files[0], _private_text(key))
        names = x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys(hosts)])
        of_server = [(names, False), (x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), False)]
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        write_text(folder / files[1], _certificate(
            subject, self._name, key.public_key(), self._key, _CERTIFICATE_DAYS,
            [(x509.BasicConstraints(ca=False, path_length=None), True), *(of_server if hosts else [])]))


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
