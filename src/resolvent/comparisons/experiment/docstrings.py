"""Help texts from docstrings: first lines, descriptions of parameters, and references."""

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any


def first_line(function: Callable[..., Any]) -> str:
    """The first line of a function's docstring, without code quotes."""
    return (inspect.getdoc(function) or "").split("\n")[0].replace("``", "")


@cache
def help_of(function: Callable[..., Any]) -> dict[str, str]:
    """The description of each parameter.

    It comes from ``Args`` or ``Attributes`` of the function's docstring. Fields that a class inherits are described by
    its bases; the nearest base takes precedence.
    """
    described, *inherited = (_described(c) for c in getattr(function, "__mro__", (function,)))
    parameters = inspect.signature(function).parameters
    return {name: text for base in reversed(inherited) for name, text in base.items() if name in parameters} | described


def _described(function: Callable[..., Any]) -> dict[str, str]:
    import docstring_parser  # here, because a run does not need it

    parsed = docstring_parser.parse(inspect.cleandoc(function.__doc__ or ""))
    return {p.arg_name: " ".join((p.description or "").replace("``", "").split()) for p in parsed.params}


@cache
def references(function: Callable[..., Any]) -> tuple[str, ...]:
    """The entries of a docstring's ``References`` section, the main source first. Blank lines separate the entries."""
    section = re.search(r"^References:\n((?:(?:    .*)?\n?)*)", inspect.getdoc(function) or "", re.MULTILINE)
    entries = re.split(r"\n\s*\n", section[1].strip()) if section else []
    return tuple(" ".join(entry.split()) for entry in entries)
