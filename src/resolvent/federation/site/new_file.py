"""A new ``site.yaml``: the few settings that only a person at the site can know, and limits safe for any table."""

import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from resolvent.comparisons.experiment.changes import apply_changes
from resolvent.comparisons.experiment.docstrings import help_of
from resolvent.data.files.atomic_files import hidden_sibling
from resolvent.errors import InputError, count_of
from resolvent.federation.protocol.files import SiteFile, read_site
from resolvent.federation.protocol.limits import LIMITS
from resolvent.federation.site.read_rows import read_frame

_WIDTH = 110  # characters of a line of a comment


def write_site_file(path: Path, table: str, changes: Sequence[str] = ()) -> SiteFile:
    """Write the file of a site: its table, a profile of limits, a rule of approval without plans, and the changes.

    Above each setting a comment says what it means; a setting without a value is behind a #. The rows and the columns
    of the table are in the comment of ``table``. ``site check`` shows all further settings and limits.

    Args:
        path: the file; an existing one is not changed.
        table: the site's table; a relative path begins at the folder of the file.
        changes: further settings, each ``key=value``, such as ``limits.min_cell=10``.

    Returns:
        The settings that were read from the new file.

    Raises:
        InputError: the file exists, the table cannot be read, or a setting is wrong.
    """
    exists = f"{path} exists, and is not overwritten: edit it, or give --site another name"
    if path.exists():
        raise InputError(exists)
    settings: dict[str, Any] = {"table": table, "approval": {}, "limits": {}}
    apply_changes(settings, changes)
    if settings["approval"] is None:  # no rule: a person decides about no plan
        del settings["approval"]
    partial = hidden_sibling(path, ".new")
    try:
        partial.write_text("\n".join(_lines(settings, "")), "utf-8")
        frame = read_frame(read_site(partial))
        content = f" It has {count_of(len(frame), 'row')} and the columns {_written([*map(str, frame.columns)])}."
        partial.write_text("\n".join(_lines(settings, content)), "utf-8")
        site = read_site(partial)
        os.link(partial, path)  # fails if another process has made the file
    except InputError as error:
        raise InputError(str(error).replace(str(partial), str(path))) from error
    except FileExistsError:
        raise InputError(exists) from None
    finally:
        partial.unlink(missing_ok=True)
    return site


def _lines(settings: Mapping[str, Any], content: str) -> Iterator[str]:
    """The lines of the file; ``content`` says what is in the table."""
    yield "# The file of this site: its table and what it allows. It is read here and is not sent. resolvent site check"
    yield "# KIT FILE explains every setting and limit, with what is in force."
    meanings = help_of(SiteFile)
    defaults = {item.name: item.default for item in fields(SiteFile) if item.name not in ("limits", "folder")}
    limits = settings.get("limits") or {}
    for name, value in {**_in_order(settings, ("table", "columns", "profile", "approval")), "limits": limits}.items():
        yield from _comment(meanings.get(name, "") + (content if name == "table" else ""))
        if name != "limits":
            yield _line(name, defaults.get(name) if value is None else value)
    yield "limits:"
    for name, value in _in_order(limits, ("labels", "features")).items():
        limit = LIMITS.get(name)
        yield from _comment("" if limit is None else f"{limit.meaning}. Reason: {limit.why}.", "  ")
        yield f"  {_line(name, value)}"
    yield ""


def _in_order(settings: Mapping[str, Any], first: Sequence[str]) -> dict[str, Any]:
    """Settings, with these first, also if they are not set."""
    return {name: settings.get(name) for name in (*first, *settings) if name != "limits"}


def _comment(text: str, indent: str = "") -> Iterator[str]:
    text = text[:1].upper() + text[1:].replace("None", "null")  # null: as the file writes it
    yield from textwrap.wrap(text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ",
                             break_long_words=False, break_on_hyphens=False)


def _line(name: str, value: Any) -> str:
    return f"{'# ' if value is None else ''}{name}: {_written(value)}"


def _written(value: Any) -> str:
    """A value as YAML on one line; a character that could end a comment is written as its number."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)
