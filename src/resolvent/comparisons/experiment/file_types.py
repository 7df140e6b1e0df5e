"""Which annotated types a YAML file can hold, and in which form."""

import inspect
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from jaxtyping import AbstractArray, ArrayLike

__all__ = ["choices", "file_type", "members"]

_SCALARS = frozenset({bool, int, float, str, Path, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})
_ARRAY_LIKE = frozenset(get_args(ArrayLike))


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


def choices(hint: Any) -> list[str]:
    """The values that a ``Literal``, or a list of one, allows; empty for other types."""
    single = [get_args(m)[0] if get_origin(m) in (list, tuple) else m for m in members(hint)]
    return [str(value) for m in single if get_origin(m) is Literal for value in get_args(m)]
