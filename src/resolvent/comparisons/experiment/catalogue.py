"""All parts that a file can name, with a line each, and of each preset its source and properties.

``catalogue.json`` has them, so that a list is printed, and a part is found, without importing the library;
``tests/catalogue.py`` writes it from the parts' docstrings and code, and a test compares.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

Entry = Mapping[str, Any]


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((resources.files(__package__) / "catalogue.json").read_text("utf-8"))
    return content


def lines() -> Mapping[str, Mapping[str, str]]:
    """Kind -> name of a part -> a line about it. Combinators are a kind of their own."""
    kinds: Mapping[str, Mapping[str, str]] = _content()["kinds"]
    return kinds


def modules(kind: str) -> Mapping[str, str]:
    """Name of a part of a kind -> the module that defines it."""
    of_kind: Mapping[str, str] = _content()["modules"].get(kind, {})
    return of_kind


def catalogue() -> Sequence[Entry]:
    """All presets at their defaults, in the order in which they are listed.

    An entry has name, title, source; keeps, down, up (models, numbers, text): what a party stores, receives in a round
    over all phases, and replies; phases; personal; robust; sums: ``yes``, ``no`` or ``CentreFromSums``; and parts: the
    components that it was built with, where it has no default, by parameter.
    """
    entries: Sequence[Entry] = _content()["algorithms"]
    return entries
