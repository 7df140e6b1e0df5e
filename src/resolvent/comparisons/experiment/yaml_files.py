"""YAML: reading with the line of an error, and writing with comments."""

import re
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, NodeEvent, ScalarEvent

from resolvent.comparisons.experiment.binding import Bound, parameters
from resolvent.errors import InputError, quote, shorten

MAX_FILE_SIZE = 200_000  # characters: a search with 700 trials of nested algorithms, and a second of checks
_MAX_VALUES = 20_000  # a file without aliases has fewer
_MAX_DEPTH = 30
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
_FORBIDDEN = re.compile(rf"[\ud800-\udfff]|{_CONTROL}[\s\S]|[\s\S]{_CONTROL}")  # alone, one can separate cells
_OCTAL = re.compile(r"[-+]?0[0-9_]*[0-9]")


def check_yaml(text: str, locate: Callable[[int], str]) -> None:
    """Refuse a text that is too long, too deep, expands too far, or that readers of YAML do not agree about.

    Raises:
        Exception: of any kind, by the parser, if it is not YAML; see ``reported``.
    """
    if len(text) > MAX_FILE_SIZE:
        raise InputError(f"{locate(1)}: more than {MAX_FILE_SIZE} characters, the most that an experiment may have: "
                         "is it another file?")
    sizes: dict[str, int] = {}  # values that each anchor stands for
    anchors: list[str | None] = []  # of the open collections
    counts = [0]  # values of the open collections, the whole text first
    for event in YAML(pure=True).parse(StringIO(text)):
        if isinstance(event, NodeEvent):
            line = locate(event.start_mark.line + 1)
            _check_node(event, line)
            if isinstance(event, CollectionStartEvent):
                anchors.append(event.anchor)
                counts.append(1)
                if len(anchors) > _MAX_DEPTH:
                    raise InputError(f"{line}: more than {_MAX_DEPTH} levels of nested lists and mappings")
                continue
            size, anchor = 1, event.anchor
            if isinstance(event, AliasEvent):
                if anchor in anchors:
                    raise InputError(f"{line}: {quote(anchor)} is repeated within itself: write the settings out")
                size, anchor = sizes.get(anchor, 1), None
        elif isinstance(event, CollectionEndEvent):
            size, anchor = counts.pop(), anchors.pop()
        else:
            continue
        counts[-1] += size
        if anchor is not None:
            sizes[anchor] = size
        if counts[-1] > _MAX_VALUES:
            raise InputError(f"{locate(event.start_mark.line + 1)}: the repeated parts (*) stand for more than "
                             f"{_MAX_VALUES} values: write the settings out")


def _check_node(event: NodeEvent, line: str) -> None:
    tag = getattr(event, "tag", None)
    if tag is not None:
        raise InputError(f"{line}: the tag {quote(tag)} is not supported: remove it")
    if isinstance(event, ScalarEvent) and _FORBIDDEN.search(event.value):
        raise InputError(f"{line}: {quote(event.value)} has a control character, or half of a pair of characters (a "
                         "surrogate): remove it")
    if isinstance(event, ScalarEvent) and event.implicit[0] and _OCTAL.fullmatch(event.value):
        raise InputError(f"{line}: {quote(event.value)} is ambiguous, because some programs read a number with a "
                         f"leading zero as octal: write {int(event.value.replace('_', ''))} for the decimal "
                         "number, or put text in quotes")


def reported(error: Exception, text: str, source: str) -> InputError:
    """The error of a parser as an ``InputError`` with the file and the line.

    For texts that are not YAML the parser raises ``IndexError``, ``KeyError`` and others besides its own errors.
    """
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    position = getattr(error, "position", None)
    line = mark.line + 1 if mark else text.count("\n", 0, position) + 1 if isinstance(position, int) else 1
    reason = getattr(error, "problem", None) or getattr(error, "reason", None)
    return InputError(f"{source}:{line}: not YAML: "
                      f"{shorten(' '.join(str(reason).split())) if reason else 'the parser cannot read it'}")


def read_text(path: Path) -> str:
    """The text of a file that a person has written; of one that is too large for ``read_yaml``, the beginning."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_FILE_SIZE + 1)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(f"there is no file {shorten(path)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}:1: the file is not text in UTF-8: {error}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def read_yaml(text: str, source: str) -> Any:
    """The content of a YAML text that a person has written, with the line of each key.

    Raises:
        InputError: it is not YAML, or too large; the message has the line.
    """
    try:
        check_yaml(text, lambda line: f"{source}:{line}")
        return YAML().load(text)
    except InputError:
        raise
    except Exception as error:
        raise reported(error, text, source) from error


def read_value(text: str, source: str) -> Any:
    """A YAML value on one line, as plain Python data."""
    try:
        check_yaml(text, lambda line: source)
        return YAML(typ="safe", pure=True).load(text)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{source}: {quote(text)} is not a YAML value") from error


def write_yaml(settings: Mapping[str, Any]) -> str:
    """Settings as the text of an experiment file, with a line for each key."""
    text = StringIO()
    yaml = YAML()
    yaml.width = 1_000_000  # no folding: the comment of a key follows its value on one line
    yaml.representer.add_representer(type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null"))
    yaml.dump(settings, text)
    return text.getvalue()


def with_help(bound: Bound) -> CommentedMap:
    """The settings of a bound function, each with its help as a comment."""
    result = CommentedMap()
    if bound.name is not None:
        result["name"] = bound.name
    known, settings = parameters(bound.function), bound.settings()
    for key, setting in settings.items():
        if key == "name" and bound.name is not None:
            continue
        part = bound.parts.get(key)
        if isinstance(part, dict):
            result[key] = CommentedMap((label, with_help(p)) for label, p in part.items())
        else:
            result[key] = setting if part is None else with_help(part)
        if known[key].help:
            result.yaml_add_eol_comment(known[key].help, key)
    return result
