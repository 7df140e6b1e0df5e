"""Arguments that several commands have."""

from typing import Annotated

import tyro

__all__ = ["Changes", "Source"]

Changes = Annotated[tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="KEY.PATH=VALUE ...")]
Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE.yaml")]
