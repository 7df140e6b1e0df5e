"""Arguments that several commands have.

An empty hint leaves out ``(default: None)``: the option's explanation says what happens without it.
"""

from pathlib import Path
from typing import Annotated

import tyro

__all__ = ["Changes", "Names", "OptionalInt", "OptionalNumber", "OptionalPath", "OptionalText", "Rows", "Source",
           "Texts"]

Changes = Annotated[tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="KEY.PATH=VALUE ...")]
Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE.yaml")]
Names = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint="")]
Texts = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="")]
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]
OptionalText = Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")]
OptionalNumber = Annotated[float | None, tyro.conf.arg(metavar="NUMBER", help_behavior_hint="")]
Rows = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ROWS]", help_behavior_hint="")]
