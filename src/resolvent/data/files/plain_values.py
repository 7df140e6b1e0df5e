"""Objects of plain values, as JSON and messages have them, whose types are checked."""

from typing import Any, TypeVar

from resolvent.errors import InputError, shorten

_T = TypeVar("_T")


def read_plain(kind: type[_T], content: Any, title: str) -> _T:
    """The object of a data class whose fields are these values, as ``dataclasses.asdict`` gives them.

    Args:
        title: what an error begins with, such as ``the site sent no report``.

    Raises:
        InputError: a value is missing or has another type, or ``__post_init__`` refuses the values.
    """
    from pydantic import TypeAdapter, ValidationError  # here, because their import is slow

    try:
        read: _T = TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{title} ({f'{place}: ' if place else ''}{shorten(first['msg'])})") from error
    return read
