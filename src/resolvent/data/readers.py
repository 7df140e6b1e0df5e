"""Readers of file formats: IDX, CIFAR-10's binary batches, LEAF's JSON and Stack Exchange's XML.

A file that is cut off, damaged or in another format is an `InputError` that names the file.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from resolvent.data import files
from resolvent.errors import InputError, shorten

__all__ = ["iterate_xml_rows", "read_cifar_batch", "read_idx", "read_leaf"]

_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_CIFAR_RECORD = 1 + 3 * 32 * 32
_LEAF_KEYS = {"users", "num_samples", "user_data"}


def read_idx(path: Path) -> NDArray[Any]:
    """The array in an IDX file, the format of MNIST.

    The file holds two zero bytes, the type, the rank, the sizes and the values, all big-endian.

    Raises:
        InputError: it is not an IDX file, or its length does not fit its header.
    """
    data = files.read(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX_TYPES or not data[3]:
        raise InputError(f"{path} is not an IDX file: it begins with {data[:4].hex(' ')!r}, expected 00 00, a type "
                         "(08 to 0e) and a rank: download it again")
    dtype, rank = np.dtype(_IDX_TYPES[data[2]]), data[3]
    header = 4 + 4 * rank
    if len(data) < header:
        raise InputError(f"{path} is cut off in its header: {len(data)} bytes, expected {header} and the values: "
                         "download it again")
    shape = np.frombuffer(data, ">u4", rank, 4).astype(int)
    expected = header + int(np.prod(shape)) * dtype.itemsize
    if len(data) != expected:
        fault = "is cut off" if len(data) < expected else "is too long"
        raise InputError(f"{path} {fault}: its header says {' x '.join(map(str, shape))} values, so {expected} bytes "
                         f"were expected, and there are {len(data)}: download it again")
    return np.frombuffer(data, dtype, offset=header).reshape(shape).astype(dtype.newbyteorder("="))


def read_cifar_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Images [n, 32, 32, 3] and labels [n] of one CIFAR-10 batch, in the binary format.

    A record is a label and 3 x 32 x 32 pixels. The Python version of CIFAR-10 is not read: it is a pickle, and a
    pickle can run any code.

    Raises:
        InputError: the file is not a whole number of such records.
    """
    data = files.read(path)
    if not data or len(data) % _CIFAR_RECORD:
        raise InputError(f"{path} is not a whole CIFAR-10 batch: {len(data)} bytes, expected a multiple of "
                         f"{_CIFAR_RECORD} (a label and 3 x 32 x 32 pixels a record): download the binary version")
    records = np.frombuffer(data, np.uint8).reshape(-1, _CIFAR_RECORD)
    planes, labels = records[:, 1:], records[:, 0].astype(np.int32)
    if labels.max() > 9:
        raise InputError(f"{path} is not a CIFAR-10 batch: it has label {labels.max()}, expected 0 to 9: download the "
                         "binary version")
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


def read_leaf(path: Path) -> dict[str, tuple[list[Any], list[Any]]]:
    """Inputs and labels by user, from a LEAF file (users, num_samples, user_data) or a folder of such files.

    Raises:
        InputError: a file is not in this format, or a user has another number of samples than the file says.
    """
    if path.is_dir():
        parts = [read_leaf(p) for p in sorted(path.iterdir()) if p.name.endswith((".json", ".json.gz"))]
        if not parts:
            raise InputError(f"{path} holds no .json or .json.gz file: name a LEAF file, or a folder of them")
        return {user: samples for part in parts for user, samples in part.items()}
    try:
        content = json.loads(files.read(path))
    except ValueError as error:
        raise InputError(f"{path} is not JSON, or cut off: {error}") from error
    if not isinstance(content, dict) or not set(content) >= _LEAF_KEYS:
        keys = sorted(content)[:5] if isinstance(content, dict) else type(content).__name__
        raise InputError(f"{path} is not a LEAF file: expected users, num_samples and user_data, got {shorten(keys)}")
    samples = {}
    for user, number in zip(content["users"], content["num_samples"], strict=True):
        held = content["user_data"].get(user)
        if held is None or not len(held["x"]) == len(held["y"]) == number:
            counts = "none" if held is None else f"{len(held['x'])} inputs and {len(held['y'])} labels"
            raise InputError(f"{path}: user {shorten(repr(user))} should have {number} samples, but there are "
                             f"{counts}: correct num_samples, or write the file again")
        samples[str(user)] = (held["x"], held["y"])
    return samples


def iterate_xml_rows(path: Path) -> Iterator[dict[str, str]]:
    """The attributes of each ``row`` of a Stack Exchange dump, read as a stream, so that memory stays constant.

    Raises:
        InputError: the file is cut off, or not XML.
    """
    with files.open_unpacked(path) as file:
        try:
            root: ElementTree.Element | None = None
            for event, element in ElementTree.iterparse(file, events=("start", "end")):
                if root is None:
                    root = element
                if event == "end" and element.tag == "row":
                    yield dict(element.attrib)
                    root.clear()
        except (ElementTree.ParseError, *files.READ_ERRORS) as error:
            raise InputError(f"{path} is cut off or not an XML dump of rows ({error}): download it again") from error
