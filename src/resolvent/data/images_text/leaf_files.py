"""LEAF's JSON: the samples of each user, checked field by field.

A file has ``users`` (names), ``num_samples`` (a number per user) and ``user_data`` (per user the inputs ``x`` and the
labels ``y``). An error names the file and the field.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.data.files import data_files as files
from resolvent.data.images_text.tokens import CHARACTERS, encode_characters
from resolvent.data.samples import check_name
from resolvent.errors import InputError, quote, shorten

_MAX_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class _UserData:
    x: list[Any]
    y: list[Any]


@dataclass(frozen=True)
class _Content:
    users: list[str]
    num_samples: list[Any]
    user_data: dict[str, _UserData]


class LeafSamples(NamedTuple):
    """The samples of a user.

    Attributes:
        x: [n, ...] 32-bit floats; or, if inputs are texts, [n, length] tokens of LEAF's characters (uint8).
        y: [n] numbers or texts; if inputs are texts, single characters of LEAF's alphabet.
    """

    x: NDArray[Any]
    y: NDArray[Any]


def is_tokens(samples: LeafSamples) -> bool:
    """Whether the inputs are texts."""
    return samples.x.dtype == np.uint8


def read_leaf(path: Path) -> dict[str, LeafSamples]:
    """The samples of each user who has any, from a LEAF file or a folder of such files."""
    if not path.is_dir():
        return _read_file(path)
    paths = sorted(p for p in path.iterdir() if p.name.endswith((".json", ".json.gz")))
    if not paths:
        raise InputError(f"{path} holds no .json or .json.gz file: name a LEAF file, or a folder of them")
    samples: dict[str, LeafSamples] = {}
    for part in paths:
        for user, new in _read_file(part).items():
            if user in samples:
                raise InputError(f"{part}: users: {shorten(repr(user))} is also in another file of the folder: put "
                                 "all samples of a user in one file")
            samples[user] = new
    return samples


def _read_file(path: Path) -> dict[str, LeafSamples]:
    content = _parse(path)
    if len(content.users) != len(content.num_samples):
        raise InputError(f"{path}: num_samples has {len(content.num_samples)} numbers for {len(content.users)} users: "
                         "write the file again")
    samples: dict[str, LeafSamples] = {}
    for user, occurrences in Counter(content.users).items():
        check_name(user, f"{path}: users: a name")
        if occurrences > 1:
            raise InputError(f"{path}: users: {shorten(repr(user))} occurs twice: give each user once")
    for user, count in zip(content.users, content.num_samples, strict=True):
        title = f"{path}: user_data: user {shorten(repr(user))}"
        data = content.user_data.get(user, _UserData([], []))
        x, y = data.x, data.y
        if not len(x) == len(y) == count:
            raise InputError(f"{title} should have {shorten(repr(count))} samples, but there are {len(x)} inputs and "
                             f"{len(y)} labels: correct num_samples, or write the file again")
        if x:
            samples[user] = _read_samples(title, x, y)
    return samples


def _parse(path: Path) -> _Content:
    from pydantic import TypeAdapter, ValidationError  # here, because their import is slow

    try:
        return TypeAdapter(_Content).validate_python(json.loads(files.read(path)))
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{path} is not a LEAF file: {'.'.join(map(str, first['loc']))}: {shorten(first['msg'])}, got "
                         f"{quote(first['input'])}: write the file again") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON, or cut off: {shorten(error)}") from error
    except RecursionError as error:
        raise InputError(f"{path} is not a LEAF file: its values are nested too deeply") from error


def _read_samples(title: str, x: list[Any], y: list[Any]) -> LeafSamples:
    """The samples of a user who has at least one."""
    if any(isinstance(sample, str) for sample in x):
        if not all(isinstance(sample, str) and len(sample) == len(x[0]) > 0 for sample in x):
            raise InputError(f"{title}: x: the inputs are neither numbers nor text of one length: correct them")
        for label in y:
            if not isinstance(label, str) or len(label) != 1:
                raise InputError(f"{title}: y: the label of a text must be one character, got {shorten(repr(label))}: "
                                 "correct it")
        return LeafSamples(np.stack(encode_characters(x)), np.array([c if c in CHARACTERS else " " for c in y]))
    inputs = _array(x)
    if inputs is None or inputs.dtype.kind not in "biuf":
        raise InputError(f"{title}: x: the inputs are neither numbers nor text of one length: correct them")
    if not inputs.size:
        raise InputError(f"{title}: x: the inputs hold no value: leave them out")
    _check_finite(f"{title}: x", inputs)
    return LeafSamples(inputs.astype(np.float32), _read_labels(title, y))


def _read_labels(title: str, y: list[Any]) -> NDArray[Any]:
    labels = _array(y)
    kinds = {isinstance(label, str) for label in y}
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "bifU" or len(kinds) > 1:
        raise InputError(f"{title}: y: the labels must be all numbers (whole ones up to 2^63) or all texts, "
                         f"such as the first, {shorten(repr(y[0]))}: correct them")
    if labels.dtype.kind == "U":
        for label in y:
            check_name(label, f"{title}: y: a label")
    else:
        _check_finite(f"{title}: y", labels)
    return labels


def _array(values: list[Any]) -> NDArray[Any] | None:
    """The array of nested lists; None if they are of different lengths or too deep."""
    try:
        return np.array(values)
    except (ValueError, OverflowError):
        return None


def _check_finite(title: str, values: NDArray[Any]) -> None:
    wrong = ~(np.abs(values.astype(float)) <= _MAX_FLOAT32)
    if wrong.any():
        row = int(np.argwhere(wrong)[0, 0])
        raise InputError(f"{title}: sample {row} has a value that is not finite, or too large for a 32-bit float: "
                         "correct it, or leave the sample out")
