"""Errors that a person can act on."""

import difflib
from collections.abc import Iterable

__all__ = ["InputError", "nearest"]


class InputError(ValueError):
    """What a person gave is wrong: the message says what, why, and what to give instead."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The nearest of the allowed words as the end of a sentence (``; did you mean 'x'?``), or nothing."""
    found = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""
