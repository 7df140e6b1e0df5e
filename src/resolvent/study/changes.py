"""Changes of settings from the command line (``key.path=value``), and the lines of keys in a file."""

from collections.abc import Mapping, Sequence
from typing import Any

from ruamel.yaml.comments import CommentedMap, CommentedSeq

from resolvent.errors import InputError
from resolvent.study.yaml_files import read_value

__all__ = ["Locations", "apply_changes"]


class Locations:
    """Where the settings of an experiment come from: a line of its file, or a change.

    Attributes:
        source: the name of the file.
        settings: the settings with all changes.
        changes: the change of each changed path.
    """

    def __init__(self, source: str, settings: Any, changes: Mapping[str, str]) -> None:
        self.source, self.settings, self.changes = source, settings, changes

    def __call__(self, path: str) -> str:
        """The origin of a path's setting, such as ``mine.yaml:7`` or ``--set rounds=3``."""
        for changed, change in self.changes.items():
            if _is_within(path, changed):
                return f"--set {change}"
        related = [change for changed, change in self.changes.items() if _is_within(changed, path)
                   or (_picks_part(change) and _is_within(path, changed.removesuffix(".name")))]
        return f"{self.source}{_line_of(self.settings, path)}" + (f" with --set {' '.join(related)}" if related else "")


def apply_changes(settings: Any, changes: Sequence[str]) -> dict[str, str]:
    """Change settings in place.

    A change of a ``name`` removes the settings of the part that it replaces, so these changes are applied first.

    Args:
        settings: nested mappings.
        changes: each ``key.path=value``; the value is YAML.

    Returns:
        The change of each changed path.

    Raises:
        InputError: a change is malformed, or leads through a value.
    """
    return {_apply(settings, change): change for change in sorted(changes, key=lambda c: not _picks_part(c))}


def _apply(settings: Any, change: str) -> str:
    """Apply one change; returns its path."""
    path, equals, text = change.partition("=")
    if not equals or not path:
        raise InputError(f"--set {change}: expected key.path=value, such as --set rounds=50")
    value = read_value(text, f"--set {change}")
    level: Any = settings
    remainder, parent = path, ""
    while (key := _first_key(level, remainder)) != remainder:
        parent, remainder = f"{parent}.{key}".strip("."), remainder[len(key) + 1:]
        if isinstance(level.get(key), str):
            level[key] = {"name": level[key]}
        level = level.setdefault(key, {})
        if not isinstance(level, Mapping):
            raise InputError(f"--set {change}: {parent} is a value, not a mapping")
    if key == "name" and parent and level.get("name", value) != value:
        level.clear()  # another part has other settings
    level[key] = value
    return path


def _picks_part(change: str) -> bool:
    """Whether a change picks another part."""
    return change.partition("=")[0].endswith(".name")


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}.")


def _first_key(settings: Any, path: str) -> str:
    """The first key of a path: the longest that the settings have (labels may contain dots), or up to the first dot."""
    keys = [str(key) for key in settings if str(key) and _is_within(path, str(key))]
    return max(keys, key=len) if keys else path.partition(".")[0] or path


def _line_of(settings: Any, path: str) -> str:
    """``:7`` if the last known key of a path is on line 7; empty if no key is known."""
    line = None
    level, remainder = settings, path
    while remainder and isinstance(level, CommentedMap | CommentedSeq):
        keys: Any = level if isinstance(level, CommentedMap) else range(len(level))
        key = next((k for k in keys if str(k) == _first_key(keys, remainder)), None)
        if key is None:
            break
        if key in (level.lc.data or {}):
            line = level.lc.data[key][0] + 1
        remainder = remainder[len(str(key)) + 1:]
        level = level[key]
    return f":{line}" if line else ""
