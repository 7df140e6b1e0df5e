"""Arguments that several commands have.

An empty hint leaves out ``(default: None)``: the option's explanation says what happens without it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from resolvent.tables.text_formats import TextFormat

LABEL_WIDTH = 24  # of progress bars

Changes = Annotated[tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="KEY.PATH=VALUE ...")]
Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE.yaml")]
Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Names = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint="")]
Texts = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="")]
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]
OptionalText = Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")]
OptionalNumber = Annotated[float | None, tyro.conf.arg(metavar="NUMBER", help_behavior_hint="")]
Rows = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ROWS]", help_behavior_hint="")]


@tyro.conf.configure(tyro.conf.OmitArgPrefixes)
@dataclass(frozen=True)
class TextOptions:
    """How a text file of rows is written.

    Attributes:
        separator: the character between two values in a text file.
        decimal: the decimal mark of numbers in a text file.
        encoding: encoding of a text file, such as utf-8 or cp1252.
    """

    separator: str = "auto"
    decimal: Literal["auto", ".", ","] = "auto"
    encoding: str = "auto"

    @property
    def format(self) -> "TextFormat":
        """The options with which a text file is read.

        Raises:
            InputError: one of them is not possible.
        """
        from resolvent.tables.text_formats import TextFormat

        return TextFormat(self.separator, self.decimal, self.encoding)


def flat(changes: tuple[tuple[str, ...], ...]) -> list[str]:
    """All changes of an option that may be repeated."""
    return [change for group in changes for change in group]
