"""Cards: what a run was, for people and for programs, as JSON, Markdown and one self-contained HTML page.

A card is a mapping of plain values. Its facts are those of the JSON file; the other two files show them with four
significant digits. The signature is over the SHA-256 of the three files, so that none of them can be changed alone.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from resolvent.data.files.atomic_files import write_text
from resolvent.data.files.digests import check_files, file_digests
from resolvent.errors import InputError

CARD_FORMATS = ("json", "md", "html")
_SIGNATURE = "signature.json"
_ADVICE = ("a later command, such as calibrate, has written it again, or it was changed: ask the lead for the run "
           "folder, and check that one")
_INTERVAL = 3  # numbers: value, lower end, upper end


class _Table(NamedTuple):
    """A part of a card as a table; without ``columns`` it has two."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_card(folder: Path, name: str, card: Mapping[str, Any],
               sign: Callable[[bytes], Mapping[str, str]] | None = None) -> Path:
    """Write a card, and its signature; returns the path of the page.

    Args:
        name: name of the files without their suffix.
        card: plain values; the keys are titles, and ``title`` is the heading.
        sign: signs bytes; None: the card is not signed, and an earlier signature is removed.
    """
    (folder / f"{name}.{_SIGNATURE}").unlink(missing_ok=True)
    texts = {"json": json.dumps(card, indent=1, allow_nan=False, ensure_ascii=False) + "\n",
             "md": card_text(card, "md"), "html": card_text(card, "html")}
    for suffix, text in texts.items():
        write_text(folder / f"{name}.{suffix}", text)
    if sign is not None:
        digests = file_digests(folder, [f"{name}.{suffix}" for suffix in CARD_FORMATS])
        write_text(folder / f"{name}.{_SIGNATURE}", json.dumps({
            "files": digests, "signature": dict(sign(_signed(digests)))}, indent=1) + "\n")
    return folder / f"{name}.html"


def check_card(folder: Path, name: str, verify: Callable[[bytes, Any], str]) -> tuple[str, dict[str, Any]]:
    """Check that a card, and the files of the run whose digests it has, are those that were signed.

    Args:
        name: name of the files without their suffix.
        verify: (signed bytes, signature) -> whose it is.

    Returns:
        The name of the signer, and the card.

    Raises:
        DamagedFileError: a file was changed or removed; the message names it.
    """
    path = folder / f"{name}.{_SIGNATURE}"
    try:
        content = json.loads(path.read_text("utf-8"))
        digests, signature = dict(content["files"]), content["signature"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no signature of a card ({type(error).__name__}): name the folder of a federated "
                         "run, with its model card") from error
    if {*digests} != {f"{name}.{suffix}" for suffix in CARD_FORMATS}:
        raise InputError(f"{path} does not sign the three files of the card")
    signer = verify(_signed(digests), signature)
    check_files(folder, digests, _ADVICE)
    card: dict[str, Any] = json.loads((folder / f"{name}.json").read_text("utf-8"))
    check_files(folder, card.get("files") or {}, _ADVICE)
    return signer, card


def digest_of_text(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _signed(digests: Mapping[str, str]) -> bytes:
    return json.dumps({"card": dict(digests)}, sort_keys=True).encode()


def card_text(card: Mapping[str, Any], form: Literal["html", "md"]) -> str:
    """The card as one page, without scripts and outside resources, or as Markdown; every text is escaped.

    Example:
        >>> "<b>" in card_text({"title": "<b>", "sites": {"<b>": {"rows": 3}}}, "html")
        False
    """
    from resolvent.comparisons.page_text import page_text  # here, because a site renders a card only after a run

    return page_text("card", form, package="resolvent.federation", title=card["title"], tables=[*_tables(card)])


def _tables(card: Mapping[str, Any]) -> Iterator[_Table]:
    """Single facts together, then a table for each key."""
    single = [(_title(key), _text(value)) for key, value in card.items()
              if key != "title" and not isinstance(value, dict)]
    if single:
        yield _Table("Summary", (), single)
    for key, value in card.items():
        if not isinstance(value, dict) or not value:
            continue
        if all(isinstance(row, dict) for row in value.values()):
            columns = [*dict.fromkeys(column for row in value.values() for column in row)]
            yield _Table(_heading(key), ("", *map(_title, columns)),
                         [(str(name), *(_text(row.get(column)) for column in columns)) for name, row in value.items()])
        else:
            yield _Table(_heading(key), (), [(_title(name), _text(fact)) for name, fact in value.items()])


def _heading(key: str) -> str:
    return _title(key[:1].upper() + key[1:])


def _title(key: Any) -> str:
    return str(key).replace("_", " ")


def _text(value: Any) -> str:
    """A fact in words: a list of three numbers is an interval."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "; ".join(f"{_title(name)}: {_text(fact)}" for name, fact in value.items()) or "–"
    if isinstance(value, list | tuple):
        if len(value) == _INTERVAL and all(isinstance(end, float) for end in value):
            return f"{_text(value[0])} [{_text(value[1])}, {_text(value[2])}]"
        is_undefined = all(item is None for item in value)  # of an interval, all three numbers
        return "–" if is_undefined else ", ".join(map(_text, value))
    return str(value)
