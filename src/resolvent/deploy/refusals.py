"""The reasons for which a party does not act on a message, as codes that the server reads."""

from enum import StrEnum

__all__ = ["REPEATABLE", "RefusalCode"]


class RefusalCode(StrEnum):
    """Why a party does not act on a message.

    Attributes:
        DAMAGED: the bytes are not a valid message.
        STORAGE: the site's disk cannot be written.
        FAILED: the model or the solver has raised an exception.
        LIMITS: the experiment is beyond the site's limits.
        LOST_STATE: the party has no state of the run, or an old one.
        OTHER_RUN: the message is of another run.
        OLD: the message is of an earlier round or phase.
        CONFLICT: the message does not fit the experiment, or an earlier message.
    """

    DAMAGED = "damaged"
    STORAGE = "storage"
    FAILED = "failed"
    LIMITS = "limits"
    LOST_STATE = "lost state"
    OTHER_RUN = "other run"
    OLD = "old"
    CONFLICT = "conflict"


# The cause can be temporary: the same message may succeed in the next attempt.
REPEATABLE = frozenset({RefusalCode.DAMAGED, RefusalCode.STORAGE, RefusalCode.FAILED})
