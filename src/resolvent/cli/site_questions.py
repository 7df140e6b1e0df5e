"""``resolvent party new``: the questions whose answers become a site's file."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resolvent.cli import terminal
from resolvent.errors import InputError


def new_site_file(path: Path, table: str | None, changes: Sequence[str], *, is_silent: bool) -> None:
    """Write the file of a site from the answers of a person, or with the defaults.

    Args:
        path: the file.
        table: the site's table; None: it is asked for.
        changes: further settings, each ``key=value``.
        is_silent: whether nothing is asked.
    """
    from resolvent.federation.site.new_file import QUESTIONS, write_site_file

    is_silent = is_silent or not sys.stdin.isatty()
    if path.exists():
        raise InputError(f"{path} exists, and is not overwritten: edit it, or give --site another name")
    if table is None and is_silent:
        raise InputError("party new needs --table, the file with the rows of the site, if nothing can be asked")
    answers: dict[str, Any] = {}
    if not is_silent:
        terminal.print_line("An empty answer takes the value in brackets. Everything can be changed in the file.")
        table = table or input(f"File with the table, in the folder of {path}: ").strip()
        _show_columns(path.parent / table)
        answers = {question.key: _ask(question) for question in QUESTIONS}
    assert table is not None
    write_site_file(path, table, answers, changes)
    terminal.print_path("Site", path)
    terminal.print_line("It has every limit with its reason. Next: resolvent party check --kit KIT --site "
                        f"{path} [--experiment FILE.yaml]")


def _show_columns(table: Path) -> None:
    from resolvent.data.tables.table_files import read_table_file
    from resolvent.data.tables.text_formats import TextFormat

    frame, _ = read_table_file(str(table), TextFormat(), (), (), lambda column: True)
    terminal.print_line(f"{len(frame)} rows; columns: {', '.join(map(str, frame.columns))}")


def _ask(question: Any) -> Any:
    from resolvent.federation.site.new_file import read_answer

    while True:
        try:
            return read_answer(question, input(f"{question.text} [{question.default}]: "))
        except InputError as error:
            terminal.print_line(str(error))
