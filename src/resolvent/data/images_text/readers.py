"""Readers of file formats: IDX, CIFAR-10's binary batches and Stack Exchange's XML.

A file that is cut off, damaged or in another format is an `InputError` that names the file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.files import data_files as files
from resolvent.errors import InputError, shorten

_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_CIFAR_RECORD = 1 + 3 * 32 * 32


def read_idx(path: Path) -> NDArray[Any]:
    """The array in an IDX file, the format of MNIST.

    The file holds two zero bytes, the type, the rank, the sizes and the values, all big-endian.
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
        raise InputError(f"{path} {fault}: its header says {shorten(' x '.join(map(str, shape)))} values, so "
                         f"{expected} bytes were expected, and there are {len(data)}: download it again")
    return np.frombuffer(data, dtype, offset=header).reshape(shape).astype(dtype.newbyteorder("="))


def read_cifar_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Images [n, 32, 32, 3] and labels [n] of one CIFAR-10 batch, in the binary format.

    A record is a label and 3 x 32 x 32 pixels. The Python version of CIFAR-10 is not read: it is a pickle, and a
    pickle can run any code.
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


def iterate_xml_rows(path: Path) -> Iterator[dict[str, str]]:
    """The attributes of each ``row`` of a Stack Exchange dump, read as a stream, so that memory stays constant."""
    from xml.etree import ElementTree  # here, because a run does not need it

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
            raise InputError(f"{path} is cut off or not an XML dump of rows ({shorten(error)}): download it again"
                             ) from error
