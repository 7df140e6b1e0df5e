"""Which annotated types a YAML file can hold, in which form, and the values that it holds."""

import inspect
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from jaxtyping import AbstractArray, ArrayLike

from resolvent.arguments import expected_values, rule_of
from resolvent.errors import InputError, alternatives, quote, shorten

_SCALARS = frozenset({bool, int, float, str, Path, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})
_ARRAY_LIKE = frozenset(get_args(ArrayLike))
_MAX_INTEGER = 2**63  # larger ones are not converted to floats


def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; any other type is its own only member."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def file_type(hint: Any) -> Any:
    """The annotation as a file can hold it, or None if a file cannot hold it.

    An array-like value is a number in a file, and an array of one dimension is a list of numbers. Functions, models and
    other objects of Python cannot be written in a file. Of a union the members that a file can hold remain.
    """
    parts = members(hint)
    if set(parts) >= _ARRAY_LIKE:
        parts = (float, *(part for part in parts if part not in _ARRAY_LIKE))
    forms = [form for part in parts if (form := _form(part)) is not None]
    if not forms or forms == [type(None)]:
        return None
    return Union[tuple(forms)] if len(forms) > 1 else forms[0]  # noqa: UP007 - the members are known at run time only


def _form(part: Any) -> Any:
    if part in _SCALARS or get_origin(part) is Literal:
        return part
    if inspect.isclass(part) and issubclass(part, AbstractArray):
        return (float, list[float])[len(part.dims)] if len(part.dims) < 2 else None
    if get_origin(part) in _CONTAINERS:
        items = [item for item in get_args(part) if item is not Ellipsis]
        return part if all(file_type(item) is not None for item in items) else None
    return None


def read_setting(hint: Any, setting: Any, path: str) -> Any:
    """A setting of a file as a value of the annotated type: integers become floats, and lists tuples, where needed.

    Args:
        hint: an annotation as ``file_type`` returns it.
    """
    value, rule = with_type(hint, setting), rule_of(hint)
    if rule.accepts(value):
        return value
    for part in members(hint):
        if isinstance(setting, list) and get_origin(part) in (list, tuple):
            for number, item in enumerate(setting):
                read_setting(get_args(part)[0], item, join_path(path, number))
        if isinstance(setting, Mapping) and get_origin(part) is dict and all(isinstance(key, str) for key in setting):
            for key, item in setting.items():
                read_setting(get_args(part)[1], item, join_path(path, key))
    reason = (alternatives(str(setting), rule.choices, "allowed:") if rule.choices and isinstance(setting, str)
              else f": it must be {expected_values(rule, setting)}{_advice(setting)}")
    raise InputError(f"{path}: {quote(setting)} is not a valid value{reason}")


def with_type(hint: Any, setting: Any) -> Any:
    """The value of the annotated type that a setting, or a default, stands for; the setting, if there is none."""
    plain = _plain(setting)
    for part in members(hint):
        value, origin = plain, get_origin(part)
        if origin in (list, tuple) and isinstance(plain, list):
            value = origin(with_type(get_args(part)[0], item) for item in plain)
        elif origin is dict and isinstance(plain, dict):
            value = {key: with_type(get_args(part)[1], item) for key, item in plain.items()}
        elif part is float and isinstance(plain, int) and not isinstance(plain, bool) and abs(plain) < _MAX_INTEGER:
            value = float(plain)
        elif part is Path and isinstance(plain, str):
            value = Path(plain)
        if rule_of(part).accepts(value):
            return value
    return plain


def _plain(setting: Any) -> Any:
    """A value of a YAML parser, whose numbers and containers are subclasses, as a plain one."""
    base = next((kind for kind in (bool, int, float, str, dict, list) if isinstance(setting, kind)), None)
    return setting if base in (bool, None) else base(setting)


def _advice(setting: Any) -> str:
    """What YAML has read without quotes as something other than text, such as a date."""
    if isinstance(setting, Mapping) and not all(isinstance(key, str) for key in setting):
        return "; put keys in quotes"
    return "" if isinstance(setting, bool | int | float | str | list | Mapping | None) else "; put text in quotes"


def key_text(key: Any) -> str:
    """A key as errors write it in a path."""
    return shorten(key) if isinstance(key, str) else quote(key)


def join_path(path: str, *keys: Any) -> str:
    """The path of a setting within another one."""
    return ".".join((path, *map(key_text, keys)) if path else map(key_text, keys))
