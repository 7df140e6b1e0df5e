"""Digests of settings: of what the parts of a run are given, not of what they compute with it (see ``own_code``)."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import jax
import numpy as np

from resolvent.data.federated import FederatedData
from resolvent.data.files.array_files import PackedArray
from resolvent.data.files.own_rows import OwnRows
from resolvent.simulator.storage.tree_files import digest_of_array, digest_of_texts


def fingerprint_of(part: Any) -> str:
    """SHA-256 of ``describe(part)``."""
    return digest_of_texts(describe(part))


def describe(x: Any) -> Iterator[str]:
    """A value as a sequence of texts, which depends on its structure and its numbers alone.

    Arrays are described by dtype, shape and digest, numbers and texts by their value, functions by module, qualified
    name, defaults and the values that they enclose, and dataclasses, named tuples and containers by type and content.
    An object of any other type is described by its type.
    """
    yield from _describe(x, frozenset())


def _describe(x: Any, parents: frozenset[int]) -> Iterator[str]:
    if id(x) in parents:  # a function that encloses itself
        yield "recursion"
        return
    parents |= {id(x)}
    if x is None or isinstance(x, bool | int | float | complex | str | bytes | np.dtype):
        yield f"{type(x).__name__} {x!r}"
    elif isinstance(x, Enum):
        yield f"{_name_of(type(x))}.{x.name}"
    elif isinstance(x, PackedArray | OwnRows):
        yield f"array {x.digest}"
    elif isinstance(x, np.ndarray | np.generic | jax.Array):
        yield f"array {digest_of_array(x)}"
    elif isinstance(x, type):
        yield _name_of(x)
    elif (contents := _contents_of(x)) is not None:
        yield f"{_name_of(x) if _is_function(x) else _name_of(type(x))} {len(contents)}"
        for name, value in contents.items():
            yield name
            yield from _describe(value, parents)
    else:
        yield _name_of(type(x))


def _contents_of(x: Any) -> dict[str, Any] | None:
    """The parts of a value, by name; None for a value without parts that can be described."""
    if isinstance(x, FederatedData):  # names of parties and notes for the reader do not change a run
        names = ("x", "y", "splits", "task", "classes", "vocabulary", *(() if x.weights is None else ("weights",)))
        return {name: getattr(x, name) for name in names}
    if dataclasses.is_dataclass(x):
        return {field.name: getattr(x, field.name) for field in dataclasses.fields(x) if hasattr(x, field.name)}
    if isinstance(x, Mapping):
        return {str(key): x[key] for key in sorted(x, key=str)}
    if isinstance(x, tuple | list):
        return {str(i): value for i, value in enumerate(x)}
    if isinstance(x, set | frozenset):
        return {str(i): value for i, value in enumerate(sorted(x, key=str))}
    if isinstance(x, functools.partial):
        return {"function": x.func, "positional": x.args, "named": x.keywords}
    return _contents_of_function(x) if _is_function(x) else None


def _contents_of_function(function: Callable[..., Any]) -> dict[str, Any]:
    """The default values of a function, and the values that it encloses; for a method, also its object."""
    bound = {"self": function.__self__} if hasattr(function, "__self__") else {}
    plain: Any = getattr(function, "__func__", getattr(function, "__wrapped__", function))
    cells = getattr(plain, "__closure__", None) or ()
    names = getattr(getattr(plain, "__code__", None), "co_freevars", ())
    enclosed = {name: _cell_contents(cell) for name, cell in zip(names, cells, strict=False)}
    return {**bound, "defaults": getattr(plain, "__defaults__", None), "enclosed": enclosed}


def _cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the enclosing function has not assigned it yet
        return None


def _is_function(x: Any) -> bool:
    return callable(x) and hasattr(x, "__qualname__")


def _name_of(x: Any) -> str:
    return f"{getattr(x, '__module__', '')}.{getattr(x, '__qualname__', '')}"
