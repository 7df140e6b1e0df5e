"""Data sets from files of two common formats: LEAF's JSON by user, and LIBSVM's sparse text."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from resolvent.arguments import checked
from resolvent.data.federated import FederatedData
from resolvent.data.files import data_files as files
from resolvent.data.images_text.leaf_files import LeafSamples, is_tokens, read_leaf
from resolvent.data.images_text.tokens import CHARACTERS
from resolvent.data.partition.partitions import IID, Partition, divide
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


_MAX_EXACT_INTEGER = 2**53  # 64-bit floats hold every integer up to this one


@checked
def leaf(*, train: str, held_out: str | None = None, validation: float = 0.0, test: float = 0.2,
         seed: int = 0) -> FederatedData:
    """LEAF's JSON format (users, num_samples, user_data), gzipped or not. Its users are the parties.

    Inputs are numbers, or texts of equal length, such as LEAF's Shakespeare: then each character is a token, and the
    label is the next character. A user that is only in the test file has nothing to train on and is left out.

    Args:
        train: the training file, or a folder of such files; the path is absolute or lies in a data folder.
        held_out: the file or folder with the test samples; None: a share of the training file's samples is for
            testing.
        validation: share of each user's training samples for validation.
        test: share of each user's samples for testing; not used with held_out.
        seed: seed of the split.

    Raises:
        InputError: a file is missing, cut off or not a LEAF file; users differ in the shape or type of their samples.
            The message names the file and the field.

    Example:
        >>> data = rv.datasets.leaf(train="femnist/train", held_out="femnist/test")  # doctest: +SKIP
    """
    path = files.find(train)
    training = read_leaf(path)
    if not training:
        raise InputError(f"{path} has no user with a sample: choose another file")
    held_out_path = None if held_out is None else files.find(held_out)
    testing = {} if held_out_path is None else read_leaf(held_out_path)
    first = next(iter(training.values()))
    _check_alike(path, training, first)
    if held_out_path is not None:
        _check_alike(held_out_path, testing, first)
    none = LeafSamples(first.x[:0], first.y[:0])
    extra = [testing.get(user, none) for user in training]
    xs = [np.concatenate([samples.x, more.x]) for samples, more in zip(training.values(), extra, strict=True)]
    ys = [np.concatenate([samples.y, more.y]) for samples, more in zip(training.values(), extra, strict=True)]
    characters = tuple(CHARACTERS) if is_tokens(first) else ()
    data = FederatedData.from_arrays(
        xs, _to_class_numbers(ys), parties=list(training), classes=list(characters) or None,
        validation=validation, test=test if held_out is None else [len(more.y) for more in extra], seed=seed,
        name=path.name.split(".json")[0], vocabulary=characters)
    left_out = len(set(testing) - set(training))
    return data.with_notes(f"Users that have test samples only are left out (users: {left_out})") if left_out else data


def _check_alike(path: Path, users: Mapping[str, LeafSamples], first: LeafSamples) -> None:
    """Raise an error unless all users have inputs of the shape and type of the first one, and labels of its type."""
    for user, samples in users.items():
        title = f"{path}: user_data: user {shorten(repr(user))}"
        if (samples.x.shape[1:], is_tokens(samples)) != (first.x.shape[1:], is_tokens(first)):
            raise InputError(f"{title}: x: the inputs are {_describe(samples)}, the first user's {_describe(first)}: "
                             "give all inputs one shape and type")
        if (samples.y.dtype.kind == "U") != (first.y.dtype.kind == "U"):
            raise InputError(f"{title}: y: the first user has labels of another type: give all users numbers, or all "
                             "texts")


def _describe(samples: LeafSamples) -> str:
    return f"{'texts' if is_tokens(samples) else 'numbers'} of shape {shorten(samples.x.shape[1:])}"


def _to_class_numbers(labels: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Integers if all labels are whole numbers: the authors' programs write class numbers as 3.0."""
    is_whole = all(y.dtype.kind in "iu" or (y.dtype.kind == "f" and (y == np.floor(y)).all()
                                            and (np.abs(y) <= _MAX_EXACT_INTEGER).all()) for y in labels)
    return [y.astype(int) for y in labels] if is_whole else labels


@checked
def libsvm(*, file: str, features: int | None = None, task: Literal["classification", "regression"] = "classification",
           partition: Partition = IID(), validation: float = 0.0, test: float = 0.2,  # noqa: B008 - frozen
           seed: int = 0) -> FederatedData:
    """LIBSVM's text format, ``label index:value ...`` on each line, gzipped or not. Inputs are stored dense.

    Args:
        file: the file; its path is absolute or lies in a data folder.
        features: number of inputs; default: the largest index in the file.
        task: whether labels are classes or quantities.
        partition: how samples are distributed over parties.
        validation: share of each party's samples for validation.
        test: share of each party's samples for testing.
        seed: seed of the partition and the split.

    Raises:
        InputError: the file is missing, cut off or in another format.

    Example:
        >>> data = rv.datasets.libsvm(file="a9a.txt", features=123)  # doctest: +SKIP
    """
    from sklearn.datasets import load_svmlight_file  # here, because importing scikit-learn takes more than 1 s

    path = files.find(file)
    try:
        with files.open_unpacked(path) as lines:
            x, y = load_svmlight_file(lines, n_features=features, dtype=np.float32)
        dense: NDArray[Any] = x.toarray()
    except (ValueError, OverflowError, *files.READ_ERRORS) as error:
        raise InputError(f"{path} is cut off or not in LIBSVM's format, a label and index:value pairs on each line: "
                         f"{shorten(error)}") from error
    except MemoryError as error:
        raise InputError(f"{path}: dense inputs with its largest index do not fit into memory: correct the index"
                         ) from error
    if not len(y):
        raise InputError(f"{path} has no lines: expected a label and index:value pairs on each")
    if not (np.isfinite(dense).all() and np.isfinite(y).all()):
        raise InputError(f"{path} has a value that is not finite: correct it, or leave its line out")
    if task == "regression":
        return divide(dense, y.astype(np.float32), partition, task=task, validation=validation, test=test, seed=seed,
                      name=path.stem)
    classes, numbers = np.unique(y, return_inverse=True)
    return divide(dense, numbers, partition, classes=[f"{c:g}" for c in classes], validation=validation, test=test,
                  seed=seed, name=path.stem)
