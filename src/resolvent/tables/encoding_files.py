"""Fitted encodings as JSON files with a version and a digest, and the encoding of any data."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from resolvent.data.encoded_rows import Encoding
from resolvent.data.federated import FederatedData
from resolvent.data.files.digests import DamagedFileError, read_sealed, write_sealed
from resolvent.data.files.plain_values import read_plain
from resolvent.data.images_text.array_encoding import ArrayEncoding
from resolvent.errors import InputError, quote
from resolvent.math.tree import named_leaves
from resolvent.tables.encoding import TableEncoding

__all__ = ["encoding_of", "from_plain", "read_encoding", "to_plain", "write_encoding"]

_VERSION = 2
_KINDS: dict[str, Any] = {"table": TableEncoding, "array": ArrayEncoding}
_ADVICE = "write it again, by running the experiment again"


def encoding_of(data: FederatedData) -> Encoding:
    """The encoding of data: the fitted one, or for plain arrays the shapes, the names and the range of their inputs.

    The range is that of the training rows. It is not known for data on the disk.
    """
    if data.encoding is not None:
        return data.encoding
    targets = data.outputs if data.task == "regression" else 1
    if not hasattr(data.x, "dtype"):
        arrays = tuple((name, tuple(leaf.shape[1:]), "floating" if leaf.dtype.kind == "f" else "integer")
                       for name, leaf in named_leaves(data.x))
        return ArrayEncoding((), data.task, data.classes, targets=targets, arrays=arrays)
    low = high = None
    if not data.vocabulary and isinstance(data.x, np.ndarray):
        parts = [x for k in range(len(data)) if (x := data.party(k)[0]).size]
        low, high = float(min(x.min() for x in parts)), float(max(x.max() for x in parts))
    return ArrayEncoding(data.input_shape, data.task, data.classes, data.features, data.vocabulary, low, high,
                         targets=targets)


def to_plain(encoding: Encoding) -> dict[str, Any]:
    """An encoding as plain values, with its kind and the version of the format."""
    assert isinstance(encoding, TableEncoding | ArrayEncoding)
    kind = next(name for name, of_kind in _KINDS.items() if type(encoding) is of_kind)
    return {"version": _VERSION, "kind": kind, **asdict(encoding)}


def from_plain(content: Mapping[str, Any], title: str = "the encoding") -> Encoding:
    """The encoding that ``to_plain`` described; ``title`` names it in errors."""
    version = content.get("version")
    if version != _VERSION:
        raise InputError(f"{title} has version {quote(version)}, and this version of resolvent reads "
                         f"{_VERSION}: install the version that wrote it")
    fields = {name: value for name, value in content.items() if name not in ("version", "kind")}
    try:
        encoding: Encoding = read_plain(_KINDS[content["kind"]], fields, f"{title} is not an encoding")
    except KeyError as error:
        raise DamagedFileError(f"{title} is not an encoding (kind: {quote(content.get('kind'))}): {_ADVICE}"
                               ) from error
    except InputError as error:
        raise DamagedFileError(f"{error}: {_ADVICE}") from error
    return encoding


def write_encoding(path: Path, encoding: Encoding) -> None:
    """Write an encoding to a JSON file, completely or not at all."""
    write_sealed(path, to_plain(encoding))


def read_encoding(path: Path) -> Encoding:
    """Read an encoding that ``write_encoding`` wrote.

    Raises:
        DamagedFileError: the file is missing or damaged.
        InputError: it is of a later version.
    """
    return from_plain(read_sealed(path, _ADVICE), str(path))
