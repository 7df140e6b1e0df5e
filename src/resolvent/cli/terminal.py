"""Output on the terminal: lines and tables."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING
from unicodedata import category

import rich.box
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table
from typing_extensions import override

if TYPE_CHECKING:  # few commands need them
    from resolvent.comparisons.experiment.data_check import SiteRows
    from resolvent.data.files.fetch import FileStatus
    from resolvent.tables.checks.finding import Finding

_PIPE_WIDTH = 1000  # columns of a table that no terminal limits
MAX_SITES = 40
_NAME_WIDTH = 8  # smallest width of a column of texts
_COLOURS = {"whole": "green", "damaged": "red", "error": "red", "warning": "yellow"}


class _Console(Console):
    """A console that prints above progress bars and leaves a broken pipe to the command line.

    While bars are shown, rich replaces ``sys.stderr`` and ``sys.stdout`` by streams that print above them. Other
    consoles of rich write past these streams, into the bars.
    """

    @property
    @override
    def file(self) -> IO[str]:
        return self._file or (sys.stderr if self.stderr else sys.stdout)

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    @override
    def on_broken_pipe(self) -> None:
        raise


def visible(text: str) -> str:
    r"""A text whose control characters a terminal shows and does not obey; lines and tabulators stay.

    >>> visible("ward" + chr(27) + "[2J")
    'ward\\x1b[2J'
    """
    return "".join(f"\\x{ord(c):02x}" if category(c) == "Cc" and c not in "\n\t" else c for c in text)


def escape(text: str) -> str:
    """A text for a table: ``visible``, and no part of it is markup."""
    return escape_markup(visible(text))


def print_line(text: str) -> None:
    """Print text as it is, wrapped to the terminal."""
    _Console().print(visible(text), highlight=False, markup=False)


def print_path(title: str, path: Path | str) -> None:
    """Print ``title: path`` on one line; a path or a command is copied from there."""
    _Console().print(visible(f"{title}: {path}" if title else str(path)), highlight=False, markup=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Print a message about the progress of a command to standard error."""
    _Console(stderr=True, soft_wrap=True).print(visible(text), highlight=False, markup=False)


def print_table(table: Table, *, is_wide: bool = False, soft_wrap: bool = False) -> None:
    """Print a table; a wide one is folded on a terminal only, so that programs can read it line by line."""
    width = None if sys.stdout.isatty() or not is_wide else _PIPE_WIDTH
    _Console(width=width, soft_wrap=soft_wrap).print(table)


def file_table(files: "Sequence[FileStatus]") -> Table:
    """The state of each file of the data sets."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(4):
        table.add_column(overflow="fold")
    for file in files:
        colour = _COLOURS.get(file.state, "dim")
        table.add_row(f"[bold]{file.data_set}[/bold]", f"[{colour}]{file.state}[/{colour}]", escape(file.path.name),
                      escape(file.detail))
    return table


def rows_table(sites: "Sequence[SiteRows]", folds: int) -> Table:
    """The rows of each site, and the smallest gain that its test rows would show; of more than 40 sites the first."""
    more = f"; the first {MAX_SITES} of {len(sites)}" if len(sites) > MAX_SITES else ""
    caption = f"{folds} folds test each row once; the training and validation rows are of one fold."
    table = framed(f"Rows of the sites{more}", caption if folds > 1 else None, ["site"],
                    ["training", "validation", "test", "smallest\ndetectable gain"])
    for site in sites[:MAX_SITES]:
        gain = "-" if site.smallest_gain is None else f"{100 * site.smallest_gain:.0f} points"
        table.add_row(escape(site.site), *map(str, site.rows), gain)
    return table


def findings_table(findings: "Sequence[Finding]") -> Table:
    """Findings about data, with advice to each."""
    table = framed("Findings", "Settings such as missing: impute go under data: in the file.",
                   ["", "finding", "what to do"])
    for finding in findings:
        table.add_row(f"[{_COLOURS.get(finding.severity, 'dim')}]{finding.severity}[/]", escape(finding.message),
                      escape(finding.advice))
    return table


def framed(title: str, caption: str | None, texts: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """An empty table with a line below its head: columns of texts, which are folded, and columns of numbers."""
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left",
                  box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in texts:
        table.add_column(column, overflow="fold", min_width=_NAME_WIDTH)
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table
