"""Digests of files, and JSON files with a digest of their own content: a damaged file is refused, never used."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from resolvent.data.files.atomic_files import write_text
from resolvent.errors import InputError, shorten

SEAL = "sha256"


class DamagedFileError(InputError):
    """A file is missing or is not what was written."""


def file_digest(path: Path) -> str:
    """SHA-256 of the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Name -> SHA-256 of the files of these names (relative paths) in a folder."""
    return {name: file_digest(folder / name) for name in names}


def check_files(folder: Path, digests: Mapping[str, str], advice: str) -> None:
    """Check files of a folder.

    Args:
        digests: name -> SHA-256, as ``file_digests`` returned it when the files were written.
        advice: what to do about a damaged file, for the end of the error.
    """
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file():
            raise DamagedFileError(f"{path} is missing: {advice}")
        if file_digest(path) != digest:
            raise DamagedFileError(f"{path} is damaged, its SHA-256 is not that of the file that was written: {advice}")


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with its own digest under the key ``sha256``."""
    plain = json.loads(json.dumps(dict(content)))  # as it will be read: JSON turns numbers that are keys into texts
    plain.pop(SEAL, None)
    return {**plain, SEAL: _digest(plain)}


def _digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content as JSON, which does not depend on the layout of a file or on the order of keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Write content as JSON with its digest, completely or not at all."""
    write_text(path, json.dumps(seal(content), indent=1, allow_nan=False) + "\n")


def read_sealed(path: Path, advice: str) -> dict[str, Any]:
    """Read a file that ``write_sealed`` wrote, and check its digest.

    Args:
        advice: what to do if it is damaged, for the end of the error.

    Returns:
        The content, without the digest.
    """
    content = read_json(path, advice)
    digest = content.pop(SEAL, None)
    if digest is None:
        raise DamagedFileError(f"{path} has no SHA-256 of its content, it is damaged or of an earlier version: "
                               f"{advice}")
    if digest != _digest(content):
        raise DamagedFileError(f"{path} is damaged, the SHA-256 of its content is not the one that it states: "
                               f"{advice}")
    return content


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """Read a JSON file whose content is an object."""
    if path.exists() and not path.is_file():  # reading a named pipe would wait for ever
        raise DamagedFileError(f"{path} is a {'folder' if path.is_dir() else 'pipe or a device'}, not a file: {advice}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DamagedFileError(f"{path} is missing: {advice}") from None
    except json.JSONDecodeError as error:
        raise DamagedFileError(f"{path}:{error.lineno}: not JSON: {error.msg}: {advice}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, a number of thousands of digits, or nested too deeply
        raise DamagedFileError(f"{path} is damaged: {shorten(error)}: {advice}") from error
    if not isinstance(content, dict):
        raise DamagedFileError(f"{path} is damaged: its content is not a JSON object: {advice}")
    return content
