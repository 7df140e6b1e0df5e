"""LEAF's JSON: the samples of each user, checked field by field.

A file has ``users`` (names), ``num_samples`` (a number per user) and ``user_data`` (per user the inputs ``x`` and the
labels ``y``). An error names the file and the field.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.data.files import data_files as files
from resolvent.data.images_text.tokens import CHARACTERS, encode_characters
from resolvent.data.samples import check_encodable
from resolvent.errors import InputError, shorten

_KEYS = {"users", "num_samples", "user_data"}
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


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
    users, counts, data = _fields(path, content)
    samples: dict[str, LeafSamples] = {}
    for user, count in zip(users, counts, strict=True):
        title = f"{path}: user_data: user {shorten(repr(user))}"
        if user not in data:
            raise InputError(f"{title} should have {shorten(repr(count))} samples, but there are none: correct users, "
                             "or write the file again")
        x, y = _lists(title, data[user])
        if not len(x) == len(y) == count:
            raise InputError(f"{title} should have {shorten(repr(count))} samples, but there are {len(x)} inputs and "
                             f"{len(y)} labels: correct num_samples, or write the file again")
        if x:
            samples[user] = _read_samples(title, x, y)
    return samples


def _parse(path: Path) -> Any:
    try:
        return json.loads(files.read(path))
    except ValueError as error:
        raise InputError(f"{path} is not JSON, or cut off: {shorten(error)}") from error
    except RecursionError as error:
        raise InputError(f"{path} is not a LEAF file: its values are nested too deeply") from error


def _fields(path: Path, content: Any) -> tuple[list[str], list[Any], Mapping[str, Any]]:
    """The users, the number of samples of each, and their data."""
    if not isinstance(content, dict) or not set(content) >= _KEYS:
        keys = sorted(content)[:5] if isinstance(content, dict) else type(content).__name__
        raise InputError(f"{path} is not a LEAF file: expected users, num_samples and user_data, got {shorten(keys)}")
    users, counts, data = content["users"], content["num_samples"], content["user_data"]
    for field, value, kind in (("users", users, list), ("num_samples", counts, list), ("user_data", data, dict)):
        if not isinstance(value, kind):
            raise InputError(f"{path}: {field} must be {'a list' if kind is list else 'an object'}, got "
                             f"{shorten(repr(value))}: write the file again")
    for user in users:
        if not isinstance(user, str):
            raise InputError(f"{path}: users must be texts, got {shorten(repr(user))}: write the file again")
        check_encodable(user, f"{path}: users: a name")
    if len(users) != len(counts):
        raise InputError(f"{path}: num_samples has {len(counts)} numbers for {len(users)} users: write the file again")
    if len(set(users)) < len(users):
        names: set[str] = set()
        repeated = next(user for user in users if user in names or names.add(user))  # type: ignore[func-returns-value]
        raise InputError(f"{path}: users: {shorten(repr(repeated))} occurs twice: give each user once")
    return users, counts, data


def _lists(title: str, data: Any) -> tuple[list[Any], list[Any]]:
    """The inputs and labels of a user."""
    for field in ("x", "y"):
        if not isinstance(data, dict) or not isinstance(data.get(field), list):
            raise InputError(f"{title}: {field} must be a list in an object with x and y, got "
                             f"{shorten(repr(data.get(field) if isinstance(data, dict) else data))}: write the file "
                             "again")
    return data["x"], data["y"]


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
            check_encodable(label, f"{title}: y: a label")
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
