"""Help texts from docstrings: descriptions of parameters."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any


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
