"""A new ``site.yaml``: every setting with its meaning and its default, and limits that are safe for any table."""

import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from resolvent.comparisons.experiment.changes import apply_changes
from resolvent.comparisons.experiment.docstrings import help_of
from resolvent.data.files.atomic_files import hidden_sibling
from resolvent.errors import InputError, count_of
from resolvent.federation.protocol.files import SiteFile, read_site
from resolvent.federation.protocol.limits import WHY, Limits
from resolvent.federation.site.read_rows import read_frame

_WIDTH = 110  # characters of a line of a comment


def write_site_file(path: Path, table: str, changes: Sequence[str] = ()) -> SiteFile:
    """Write the file of a site: the defaults, a rule of approval without plans, and the changes.

    Above each setting a comment says what it means, its default, and of a limit its reason. A setting without a value
    is behind a #. The rows and the columns of the table are in the comment of ``table``.

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
    yield "# The file of this site: its table and what it allows. It is read here and is not sent."
    yield "# resolvent site check KIT FILE shows what is in force, and what would leave."
    meanings = help_of(SiteFile)
    own = [item for item in fields(SiteFile) if item.name not in ("limits", "folder")]
    for item in own:
        yield ""
        yield from _setting(item, settings, meanings[item.name] + (content if item.name == "table" else ""))
    unknown = {*settings} - {item.name for item in own} - {"limits"}
    yield from (f"{name}: {_written(settings[name])}" for name in sorted(unknown))
    yield ""
    yield "# What this site allows. The reason of a limit is what a change would cost."
    yield "limits:"
    limits, meanings = settings.get("limits") or {}, help_of(Limits)
    for limit in fields(Limits):
        yield ""
        lines = _setting(limit, limits, meanings[limit.name], f" Reason: {WHY[limit.name]}.")
        yield from (f"  {line}" for line in lines)
    yield from (f"  {name}: {_written(value)}" for name, value in limits.items() if name not in WHY)
    yield ""


def _setting(item: "Field[Any]", settings: Mapping[str, Any], meaning: str, reason: str = "") -> Iterator[str]:
    """The comment and the line of a setting; a setting without a value is behind a #."""
    if item.default is not MISSING:
        meaning += f" Default: {'not set' if item.default is None else _written(item.default)}."
    text = meaning[:1].upper() + meaning[1:].replace("None", "null") + reason  # null: as the file writes it
    yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False,
                             break_on_hyphens=False)
    value = settings.get(item.name, item.default)
    yield f"{'# ' if value is None else ''}{item.name}: {_written(value)}"


def _written(value: Any) -> str:
    """A value as YAML on one line; a character that could end a comment is written as its number."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)
