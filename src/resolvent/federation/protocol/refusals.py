"""Why a site does not act on a message: the only place at which an error of a site becomes something that leaves it.

The text of an exception can quote a cell, the number of a row, a count or a path, whoever has composed it: a reader of
tables, the model, pandas. So no text leaves. What leaves is a code of a closed list, and at most the name of a column
and the limits of the site's file that are exceeded. The server turns them into a sentence. The full text is in the
site's own log.
"""

import logging
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import Any

from resolvent.errors import InputError
from resolvent.federation.protocol.wire import Message, WireError, decode, identity_of_message

_log = logging.getLogger(__name__)
_MAX_NAME = 200  # characters of the name of a column


class RefusalCode(StrEnum):
    """Why a site does not act on a message. ``sentence`` says it to the lead."""

    sentence: str

    def __new__(cls, code: str, sentence: str) -> "RefusalCode":
        """A code, which leaves the site, with the sentence that the server makes of it."""
        member = str.__new__(cls, code)
        member._value_, member.sentence = code, sentence
        return member

    DAMAGED = "damaged", "the message is damaged, or is not one of the site's version of resolvent"
    STORAGE = "storage", "the site's disk cannot be written"
    BUSY = "busy", "another process of the site has the run"
    FAILED = "failed", "the work at the site failed"
    LIMITS = "limits", "the experiment is beyond the site's limits"
    LOST_STATE = "lost state", "the site has no state of the run, or an older one than the server"
    OTHER_RUN = "other run", "the site's folder belongs to another run"
    OLD = "old", "the message is of an earlier round or phase than that of the site"
    CONFLICT = "conflict", "the message does not fit the site's experiment, or an earlier message"
    PLAN = "not in the plan", "the server asks for something that the lead's plan does not contain"
    VERSION = "version", "the site has another version of resolvent than the server: install the same"
    EXPERIMENT = "experiment", "the experiment is wrong, or has a part that the site does not have or does not allow"
    UNSIGNED = "not signed", "the plan has no valid signature of the lead of this federation"
    SIZES = "sizes", ("a site's number of rows is not signed by that site, or is another than it was before: the log "
                      "of the site that refuses names it")
    WAITING = "waits for approval", "a person at the site has to approve the plan; run this command again afterwards"
    REJECTED = "rejected", "a person at the site has rejected the plan"
    TABLE = "table", "the site's table cannot be read, has no rows, or has a column whose name cannot be one"
    ABSENT = "absent column", "the site's table does not have the column: the site can name its own in columns"
    COLUMN = ("column not allowed", "the site does not let this column take part: exclude it, or ask the site to list "
                                    "it in limits.features")
    TWICE = "column twice", "two columns of the site's table have this name"
    VALUES = "values", "the column has values that cannot be used: correct them at the site, or exclude the column"
    EMPTY = ("no complete row", "no row of the site has values in all columns that are used: fill in missing values at "
                                "the site, leave the column out, or run without the site")
    MISSING = ("missing values", "the column has missing values: fill them in, leave the rows out, or set missing: "
                                 "impute")
    CELLS = "other missing cells", ("an earlier plan has read the column with other cells that stand for a missing "
                                    "value: use the same, or ask the site to state them in missing of its file")
    RARE = "rare", "a class has fewer rows at the site than its min_cell: leave these rows out, or lower min_cell"
    ENCODING = "encoding", "the site's rows do not fit the encoding"
    SUM = ("not a permitted sum", "the server asks for a step of a secure sum that the site's rules forbid: other "
                                  "keys, a second list of sites, too few sites, or a message of an earlier round")
    RANGE = ("out of range", "a number of the reply is not finite, or beyond the range of the sums of integers: lower "
                             "the learning rate, scale the features, or raise largest")
    UNLISTED = ("levels not listed", "secure sums hide which levels a site has, so the experiment must list them: set "
                                     "data.levels for the column")
    FOLDS = "folds", ("the site does not answer in these folds: its table has changed since it has answered, it has "
                      "answered in another number of folds, or a fold has fewer rows than its min_cell")
    CHANGED = "changed table", "the table has changed since the run began: start a new run with another --out"


# That a plan is refused with such a code says something about the values in the site's rows.
OF_VALUES = frozenset({RefusalCode.COLUMN, RefusalCode.VALUES, RefusalCode.EMPTY, RefusalCode.MISSING, RefusalCode.RARE,
                       RefusalCode.ENCODING})
# The cause can be temporary: the same message may succeed in the next attempt.
REPEATABLE = frozenset({RefusalCode.DAMAGED, RefusalCode.STORAGE, RefusalCode.BUSY, RefusalCode.FAILED})


class Refusal(InputError):
    """A message that a site does not act on. Its text is for the site; code, column and limits leave.

    Args:
        reason: the full text, for the site's log and for commands at the site.
        column: the column with the reason. It must be one that the experiment names, or ``is_column_name``.
    """

    def __init__(self, code: RefusalCode, reason: str, *, column: str | None = None,
                 limits: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.code, self.column, self.limits = code, column, dict(limits or {})


@contextmanager
def refusing(code: RefusalCode, column: str | None = None) -> Iterator[None]:
    """Make an ``InputError`` of the block a ``Refusal`` with this code, which keeps the text for the site."""
    try:
        yield
    except Refusal:
        raise
    except InputError as error:
        raise Refusal(code, str(error), column=column) from error


def is_column_name(text: str) -> bool:
    """Whether a text can be the name of a column: at most 200 characters, none of which controls a terminal.

    A quotation mark that is missing in the first line of a text file makes rows part of a name.
    """
    return len(text) <= _MAX_NAME and not any(unicodedata.category(character) == "Cc" for character in text)


def reasons_of_sites(reasons: Mapping[str, str]) -> str:
    """Why sites do not answer, each reason once.

    >>> reasons_of_sites({"aachen": "no answer", "berlin": "refused", "celle": "no answer"})
    'aachen, celle: no answer; berlin: refused'
    """
    sites: dict[str, list[str]] = {}
    for site, reason in reasons.items():
        sites.setdefault(reason, []).append(site)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in sites.items())


def answer_message(data: bytes | memoryview, site: str, max_bytes: float, answer: Callable[[Message], bytes]) -> bytes:
    """Answer a message: what ``answer`` returns, or a refusal with a code, see ``outgoing``.

    Args:
        site: name of the site; a message for another one is refused.
        max_bytes: largest number of bytes of the message.
    """
    message = Message("", "", identity=identity_of_message(data) if isinstance(data, bytes | memoryview) else "")
    try:
        message = decode(data, int(max_bytes))
        if message.fact("party", str) != site:
            raise Refusal(RefusalCode.CONFLICT, f"the message is for another party than {site}")
        return answer(message)
    except WireError as error:
        return answer_refusal(Refusal(RefusalCode.DAMAGED, str(error)), site, message)
    except Exception as error:  # of the model, the solver or the table, too; its text can contain values of the rows
        return answer_refusal(error, site, message)


def answer_refusal(error: Exception, site: str, message: Message) -> bytes:
    """The answer that says by a code why a site does not act on a message."""
    return replace(message, run=message.run[:100]).answer("refusal", site, outgoing(error, site))


def outgoing(error: Exception, site: str) -> dict[str, Any]:
    """What leaves a site because of an error: plain values, without the text of the error, which is logged."""
    if isinstance(error, Refusal):
        _log.warning("%s refuses: %s: %s", site, error.code, error)
        return {"code": str(error.code), "column": error.column, "limits": error.limits}
    _log.error("%s failed", site, exc_info=error)
    code = RefusalCode.STORAGE if isinstance(error, OSError) else RefusalCode.FAILED
    return {"code": str(code), "column": None, "limits": {}}
