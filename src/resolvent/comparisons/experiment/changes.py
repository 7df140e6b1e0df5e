"""Changes of settings from the command line (``key.path=value``), and the lines of keys in a file."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ruamel.yaml.comments import CommentedMap, CommentedSeq

from resolvent.comparisons.experiment.binding import label_of, label_parts
from resolvent.comparisons.experiment.file_types import key_text
from resolvent.comparisons.experiment.yaml_files import read_value
from resolvent.errors import InputError, shorten


class Locations:
    """Where the settings of an experiment come from: a line of its file, or a change.

    Attributes:
        changes: the change of each changed path.
    """

    def __init__(self, source: str, settings: Any, changes: Mapping[str, str]) -> None:
        self.source, self.settings, self.changes = source, settings, changes

    def __call__(self, message: str) -> str:
        """The origin of a setting, such as ``mine.yaml:7`` or ``--set rounds=3``.

        Args:
            message: an error that begins with the path of the setting and a colon.
        """
        path = message.split(": ", 1)[0]
        for changed, change in self.changes.items():
            if _is_within(path, changed):
                return f"--set {shorten(change)}"
        related = [change for changed, change in self.changes.items() if _is_within(changed, path)
                   or (_picks_part(change) and _is_within(path, changed.removesuffix(".name")))]
        change = f" with --set {shorten(' '.join(related))}" if related else ""
        return f"{self.source}:{_line_of(self.settings, message)}{change}"

    @contextlib.contextmanager
    def of_errors(self, key: str = "", within: tuple[str, ...] = ()) -> Iterator[None]:
        """Prefix an error that begins with the path of a setting with the file and the line of that setting.

        Args:
            key: the setting that has the settings whose names are ``within``, by which an error can begin, too.
        """
        try:
            yield
        except InputError as error:
            message = f"{key}.{error}" if str(error).startswith(within) else str(error)
            error.args = (f"{self(message)}: {message}",)  # of its own kind: missing data stay missing data
            raise


def apply_changes(settings: Any, changes: Sequence[str]) -> dict[str, str]:
    """Change settings in place.

    A change of a ``name`` removes the settings of the part that it replaces, so these changes are applied first.

    Args:
        changes: each ``key.path=value``; the value is YAML.

    Returns:
        The change of each changed path.
    """
    return {_apply(settings, change): change for change in sorted(changes, key=lambda c: not _picks_part(c))}


def _apply(settings: Any, change: str) -> str:
    """Apply one change; returns its path."""
    path, equals, text = change.partition("=")
    title = f"--set {shorten(change)}"
    if not equals or not path:
        raise InputError(f"{title}: expected key.path=value, such as --set rounds=50")
    value = read_value(text, title)
    level: Any = settings
    remainder, parent = path, ""
    while (key := _first_key(level, remainder)) != remainder:
        parent, remainder = f"{parent}.{key}".strip("."), remainder[len(key) + 1:]
        if isinstance(level.get(key), str):
            level[key] = {"name": level[key]}
        elif isinstance(level.get(key), list):
            level[key] = label_parts(level[key], parent)
        level = level.setdefault(key, {})
        if not isinstance(level, Mapping):
            raise InputError(f"{title}: {shorten(parent)} is a value, not a mapping")
    if key == "name" and parent and level.get("name", value) != value:
        level.clear()  # another part has other settings
    level[key] = value
    return path


def _picks_part(change: str) -> bool:
    return change.partition("=")[0].endswith(".name")


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith((f"{other}.", f"{other}:"))


def _first_key(settings: Any, path: str) -> str:
    """The first key of a path: the longest that the settings have (labels may contain dots), or up to the first dot."""
    keys = [text for key in settings if (text := key_text(key)) and _is_within(path, text)]
    return max(keys, key=len) if keys else path.partition(".")[0] or path


def _line_of(settings: Any, path: str) -> int:
    """The line of the last known key of a path; 1 if no key is known."""
    line, level, remainder = 1, settings, path
    while remainder and isinstance(level, CommentedMap | CommentedSeq):
        entries = level.items() if isinstance(level, CommentedMap) else enumerate(level)
        key_of_text = {key_text(key): key for key, _ in entries}
        if isinstance(level, CommentedSeq):
            key_of_text |= {label: number for number, item in enumerate(level) if (label := label_of(item)) is not None}
        text = _first_key(key_of_text, remainder)
        if text not in key_of_text:
            break
        key = key_of_text[text]
        if key in (level.lc.data or {}):
            line = level.lc.data[key][0] + 1
        remainder = remainder[len(text) + 1:]
        level = level[key]
    return line
