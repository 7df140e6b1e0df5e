"""Where data files lie, and how their formats are read; a file that is cut off, damaged or another is named.

Files are looked for in the folder that the environment variable ``RESOLVENT_DATA`` names, then in the user's cache
folder, to which ``resolvent data fetch`` downloads. Gzip is recognised by its content, not by the name.
"""

import gzip
import io
import json
import lzma
import os
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree import ElementTree

import numpy as np
import platformdirs
from numpy.typing import NDArray

from resolvent.errors import InputError, nearest

__all__ = ["cifar_batch", "find", "folders", "idx", "leaf_json", "opened", "read", "xml_rows"]

_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)


def folders() -> list[Path]:
    """The folders in which data are looked for, in this order."""
    named = os.environ.get("RESOLVENT_DATA")
    cache = platformdirs.user_cache_path("resolvent", appauthor=False) / "data"
    return [*([Path(named).expanduser()] if named else []), cache]


def find(*names: str, fetch: str | None = None) -> Path:
    """The first of these files that is there: under its own path, or in one of the data folders, plain or gzipped.

    Args:
        names: paths, absolute or relative; ``.gz`` may be left out.
        fetch: what ``resolvent data fetch`` would download, for the error.

    Raises:
        InputError: none is there; says where it was looked for and what to do.
    """
    places = [Path(), *folders()]
    for name in names:
        for place in places:
            for ending in ("", ".gz"):
                path = place / (str(Path(name).expanduser()) + ending)
                if path.exists():
                    return path
    looked = " and ".join(str(p.absolute()) for p in places[1:])
    near = nearest(Path(names[0]).name, [p.name for place in places[1:] for p in (place / names[0]).parent.glob("*")])
    remedy = f", or run `resolvent data fetch {fetch}`" if fetch else ""
    unset = "" if os.environ.get("RESOLVENT_DATA") else " (the environment variable RESOLVENT_DATA is not set)"
    raise InputError(f"there is no file {' or '.join(names)} in {looked}{unset}: set RESOLVENT_DATA to the folder "
                     f"that has it{remedy}{near}")


def opened(path: Path) -> BinaryIO:
    """The file for reading, unpacked if it is gzipped."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        return gzip.open(path) if packed else path.open("rb")  # type: ignore[return-value]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def read(path: Path) -> bytes:
    """The whole content, unpacked if it is gzipped."""
    with opened(path) as file:
        try:
            return file.read()
        except _DAMAGED as error:
            raise InputError(f"{path} is cut off or damaged ({error}): download it again") from error


def idx(path: Path) -> NDArray[Any]:
    """The array of an IDX file, the format of MNIST: two zero bytes, type, rank, sizes, values, all big-endian."""
    data = read(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX_TYPES or not data[3]:
        raise InputError(f"{path} is not an IDX file: it begins with {data[:4].hex(' ')!r}, expected 00 00, a type "
                         f"(08 to 0e) and a rank")
    dtype, rank = np.dtype(_IDX_TYPES[data[2]]), data[3]
    start = 4 + 4 * rank
    if len(data) < start:
        raise InputError(f"{path} is cut off in its header: {len(data)} bytes, expected {start} and the values")
    shape = np.frombuffer(data, ">u4", rank, 4).astype(int)
    expected = start + int(np.prod(shape)) * dtype.itemsize
    if len(data) != expected:
        what = "is cut off" if len(data) < expected else "is too long"
        raise InputError(f"{path} {what}: its header says {' x '.join(map(str, shape))} values, so {expected} bytes "
                         f"were expected, and there are {len(data)}: download it again")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def cifar_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Images [n, 32, 32, 3] and labels [n] of one CIFAR-10 batch, in the binary or the Python format.

    The Python format is a pickle, which could run any code: only arrays and plain values are let in.
    """
    data = read(path)
    if data[:1] == b"\x80":
        planes, labels = _cifar_pickle(path, data)
    else:
        record = 1 + 3072
        if not data or len(data) % record:
            raise InputError(f"{path} is not a whole CIFAR-10 batch: {len(data)} bytes, expected a multiple of "
                             f"{record} (a label and 3 x 32 x 32 pixels a record)")
        table = np.frombuffer(data, np.uint8).reshape(-1, record)
        planes, labels = table[:, 1:], table[:, 0].astype(np.int32)
    if labels.size and not 0 <= labels.min() <= labels.max() <= 9:
        raise InputError(f"{path} is not a CIFAR-10 batch: it has label {labels.max()}, expected 0 to 9")
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


class _ArraysOnly(pickle.Unpickler):
    """Lets in NumPy arrays and what Python builds without a global name; nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The four globals that a pickled array names."""
        place = module.replace("numpy._core", "numpy.core")
        if (place, name) in {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}:
            return np._core.multiarray._reconstruct if name == "_reconstruct" else getattr(np, name)  # type: ignore[attr-defined]
        if (module, name) == ("_codecs", "encode"):
            import codecs

            return codecs.encode
        raise InputError(f"it names {module}.{name}, which is no part of an array: do not trust it")


def _cifar_pickle(path: Path, data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    try:
        batch = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
    except InputError as error:
        raise InputError(f"{path} is not a CIFAR-10 batch: {error}") from error
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise InputError(f"{path} is cut off or damaged ({error}): download it again") from error
    found = {k.decode() if isinstance(k, bytes) else k: v for k, v in batch.items()} if isinstance(batch, dict) else {}
    planes, labels = found.get("data"), found.get("labels")
    if (not isinstance(planes, np.ndarray) or planes.dtype != np.uint8 or planes.ndim != 2 or planes.shape[1] != 3072
            or not isinstance(labels, list) or len(labels) != len(planes)):
        raise InputError(f"{path} is not a CIFAR-10 batch: expected a mapping with data, uint8 [n, 3072], and labels "
                         f"for each row, found {sorted(map(str, found)) or type(batch).__name__}")
    return planes, np.asarray(labels, np.int32)


def leaf_json(path: Path) -> dict[str, tuple[list[Any], list[Any]]]:
    """Inputs and labels by user, from a LEAF file (users, num_samples, user_data) or a folder of them."""
    if path.is_dir():
        parts = [leaf_json(p) for p in sorted(path.iterdir()) if p.name.endswith((".json", ".json.gz"))]
        if not parts:
            raise InputError(f"{path} holds no .json or .json.gz file: name a LEAF file, or a folder of them")
        return {user: samples for part in parts for user, samples in part.items()}
    try:
        content = json.loads(read(path))
    except ValueError as error:
        raise InputError(f"{path} is not JSON, or cut off: {error}") from error
    if not isinstance(content, dict) or not {"users", "num_samples", "user_data"} <= set(content):
        raise InputError(f"{path} is not a LEAF file: expected users, num_samples and user_data, found "
                         f"{sorted(content)[:5] if isinstance(content, dict) else type(content).__name__}")
    samples = {}
    for user, number in zip(content["users"], content["num_samples"], strict=True):
        own = content["user_data"].get(user)
        if own is None or not len(own["x"]) == len(own["y"]) == number:
            found = "none" if own is None else f"{len(own['x'])} inputs and {len(own['y'])} labels"
            raise InputError(f"{path}: user {user!r} should have {number} samples, but there are {found}")
        samples[str(user)] = (own["x"], own["y"])
    return samples


def xml_rows(path: Path) -> Iterator[dict[str, str]]:
    """The attributes of each ``row`` of a Stack Exchange dump, one at a time: memory does not grow with the file."""
    with opened(path) as file:
        try:
            root: ElementTree.Element | None = None
            for event, element in ElementTree.iterparse(file, events=("start", "end")):
                if root is None:
                    root = element
                if event == "end" and element.tag == "row":
                    yield dict(element.attrib)
                    root.clear()
        except (ElementTree.ParseError, *_DAMAGED) as error:
            raise InputError(f"{path} is cut off or not an XML dump of rows ({error}): download it again") from error
