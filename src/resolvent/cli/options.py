"""Arguments that several commands have.

An empty hint leaves out ``(default: None)``: the option's explanation says what happens without it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

LABEL_WIDTH = 24  # of progress bars
TEXT_SETTINGS = dict.fromkeys(("separator", "decimal", "encoding"), str)  # how a text file is written

Changes = Annotated[tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="KEY.PATH=VALUE ...")]
Format = Literal["text", "json"]
Kit = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="KIT")]
OptionalKit = Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[KIT]", help_behavior_hint="")]
SiteFile = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SITE.yaml")]
Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE.yaml")]
Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Names = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint="")]
Texts = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="")]
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]
OptionalText = Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")]
Reason = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[REASON]", help_behavior_hint="")]
Rows = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ROWS]", help_behavior_hint="")]


def chosen(changes: tuple[tuple[str, ...], ...], kinds: "Mapping[str, Callable[[str], Any]]") -> dict[str, Any]:
    """The values of an option ``--set``, by the names of their settings.

    Args:
        kinds: name of a setting -> function from its text to its value.

    Raises:
        InputError: a text is no assignment, names no setting, or its value cannot be read.
    """
    from resolvent.errors import InputError, alternatives, quote

    values: dict[str, Any] = {}
    for change in flat(changes):
        name, mark, text = change.partition("=")
        if not mark or name not in kinds:
            raise InputError(f"--set {quote(change)}: {'write NAME=VALUE' if not mark else 'there is no such setting'}"
                             f"{alternatives(name, kinds)}")
        try:
            values[name] = kinds[name](text)
        except ValueError:
            raise InputError(f"--set {quote(change)}: {quote(text)} is not a valid value") from None
    return values


def one_of(*words: str) -> "Callable[[str], str]":
    """A function for ``chosen`` that takes these words only."""
    return lambda text: words[words.index(text)]  # another word is a ValueError


def flat(changes: tuple[tuple[str, ...], ...]) -> list[str]:
    """All changes of an option that may be repeated."""
    return [change for group in changes for change in group]
