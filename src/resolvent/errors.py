"""Errors that a user can act on, the checks that raise them, and the ends of their messages.

Every room may import this module.
"""

import difflib
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
from typing_extensions import override

__all__ = ["BreakdownWarning", "DivergedError", "InputError", "Interval", "MissingDataError", "ProcessLostError",
           "UnusedRepliesWarning", "alternatives", "check_range", "count_of", "nearest", "quote", "shorten"]

MAX_VALUE_LENGTH = 200
_MAX_SUGGESTIONS = 1000  # words that are compared with a misspelt one; a comparison takes about 20 microseconds

Interval = Literal["[0, inf)", "(0, inf)", "[1, inf)", "[0, 1]", "(0, 1]", "[0, 1)", "(0, 1)", "(0, 2)", "[0, 1/2)",
                   "[0, 1/4)", "(-inf, inf)"]
_CONDITIONS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x >= 0, lambda x: x > 0, lambda x: x >= 1, lambda x: (x >= 0) & (x <= 1), lambda x: (x > 0) & (x <= 1),
    lambda x: (x >= 0) & (x < 1), lambda x: (x > 0) & (x < 1), lambda x: (x > 0) & (x < 2),
    lambda x: (x >= 0) & (x < 1 / 2), lambda x: (x >= 0) & (x < 1 / 4), np.isfinite)
_CONDITION_OF = dict(zip(get_args(Interval), _CONDITIONS, strict=True))


class InputError(ValueError):
    """An argument, a file or a setting is wrong.

    The message says what is wrong, where, what is allowed, and what to do. The command line prints it on one line,
    without a traceback.
    """


class DivergedError(InputError):
    """A model whose training diverged cannot be used: its parameters or its outputs are not finite."""


class MissingDataError(InputError):
    """A file of a data set is not on this machine; nothing is wrong with the settings."""


class ProcessLostError(RuntimeError):
    """Another process of a run in several processes has ended, so that this one cannot go on."""


class BreakdownWarning(UserWarning):
    """More parties are malicious than an aggregator tolerates, so that they can move the aggregate arbitrarily far."""


class UnusedRepliesWarning(UserWarning):
    """No reply of a run counted, or in some of its rounds no reply was finite."""


def shorten(value: object) -> str:
    """The value as text on one line for an error message, cut after 200 characters.

    >>> shorten("no")
    'no'
    >>> shorten("x" * 1000)[-31:]
    'xxx... (1000 characters in all)'
    """
    text = str(value)
    if not text.isprintable():
        text = repr(text)[1:-1]
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}... ({len(text)} characters in all)"


class _ShortRepr(reprlib.Repr):
    """``repr`` in a time and with a length that do not grow with the value."""

    def __init__(self) -> None:
        self.maxlevel, self.maxother = 3, MAX_VALUE_LENGTH
        self.maxstring = self.maxlong = MAX_VALUE_LENGTH
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 6
        self.maxarray = 6
        self.fillvalue = "..."

    @override
    def repr1(self, x: Any, level: int) -> str:
        # By base class: the containers of a YAML parser are subclasses of dict and list.
        if isinstance(x, Mapping):
            return self.repr_dict(dict(islice(x.items(), self.maxdict + 1)), level)
        if isinstance(x, Sequence) and not isinstance(x, str | bytes | bytearray | tuple | range):
            return self.repr_list(list(islice(x, self.maxlist + 1)), level)
        try:
            return super().repr1(x, level)
        except Exception:  # the value's own __repr__
            return f"<{type(x).__name__}>"


def quote(value: object) -> str:
    """``repr(value)`` on one line for an error message: at most about 200 characters.

    The time that it takes does not grow with the value: of containers it shows the first items.

    >>> quote("no")
    "'no'"
    >>> quote([[1, 2], *range(1000)])
    '[[1, 2], 0, 1, 2, 3, 4, ...]'
    """
    if isinstance(value, str):
        text = repr(value[:MAX_VALUE_LENGTH])
        is_whole = len(value) <= MAX_VALUE_LENGTH and len(text) <= MAX_VALUE_LENGTH + 2
        return text if is_whole else f"{text[:MAX_VALUE_LENGTH]}... ({len(value)} characters in all)"
    text = " ".join(_ShortRepr().repr(value).split())
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}..."


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The end of an error message that suggests the most similar allowed word; empty if no word is similar.

    An allowed word that contains the whole word is the most similar one. Case and underscores do not count, because
    parts have two names, such as ``ROCAUC`` and ``roc_auc``. Only the first 1,000 allowed words are compared, and no
    word of more than 200 characters, because a comparison takes a time that grows with the product of both lengths.

    >>> nearest("regresion", ["classification", "regression"])
    "; did you mean 'regression'?"
    >>> nearest("rate", ["name", "learning_rate"])
    "; did you mean 'learning_rate'?"
    """
    if len(word) > MAX_VALUE_LENGTH:
        return ""
    candidates = [w for w in islice(allowed, _MAX_SUGGESTIONS) if len(w) <= MAX_VALUE_LENGTH]
    original = {_plain(candidate): candidate for candidate in reversed(candidates)}
    plain = _plain(word)
    longer = [candidate for candidate in original if len(plain) > 3 and plain in candidate]
    matches = sorted(longer, key=len) or difflib.get_close_matches(plain, original, n=1, cutoff=0.5)
    return f"; did you mean {shorten(repr(original[matches[0]]))}?" if matches else ""


def alternatives(word: str, allowed: Iterable[str], words: str = "there are") -> str:
    """The end of an error message that lists the allowed words; the most similar one, if any, comes before the list.

    >>> alternatives("minst", ["mnist", "digits"])
    "; did you mean 'mnist'? There are mnist, digits"
    >>> alternatives("wine", ["mnist", "digits"], "allowed:")
    '; allowed: mnist, digits'
    """
    names = list(allowed)
    listed = ", ".join(name if name.isprintable() else repr(name) for name in names)
    suggestion, listing = nearest(word, names), f"{words} {listed}"
    return f"{suggestion} {listing[0].upper()}{listing[1:]}" if suggestion else f"; {listing}"


def _plain(word: str) -> str:
    return word.casefold().replace("_", "")


def count_of(count: int, noun: str) -> str:
    """A number with a noun, such as ``1 row`` and ``2 rows``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def check_range(owner: object, interval: Interval, *, advice: str = "", **values: Any) -> None:
    """Raise an error if a number is outside an interval.

    Values that are not known numbers (schedules, traced values, None) pass.

    Args:
        advice: what to do instead, for the end of the error.
    """
    jax = sys.modules.get("jax")  # where nothing has imported it, no value is an array of JAX
    arrays = () if jax is None else (jax.Array,)
    title = owner if isinstance(owner, str) else type(owner).__name__
    for name, value in values.items():
        if isinstance(value, (int, float, list, tuple, np.generic, np.ndarray, *arrays)) and not (
                jax and isinstance(value, jax.core.Tracer)):
            numbers = np.asarray(value)
            outside = numbers[~_CONDITION_OF[interval](numbers)]  # NaN fails every condition
            if outside.size:
                raise InputError(
                    f"{title}({name}={outside.flat[0]}) must lie in {interval}{advice and f': {advice}'}")


def __dir__() -> list[str]:
    return __all__
