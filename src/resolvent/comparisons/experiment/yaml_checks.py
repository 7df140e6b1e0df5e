"""What the text of an experiment file may contain: checks of its YAML events before anything is built from them.

A few hundred characters of YAML can stand for billions of values, by aliases of aliases. The events of a text are read
in a time that grows with the text alone, so the values that it stands for are counted before they exist.
"""

import re
from collections.abc import Callable
from io import StringIO

from ruamel.yaml import YAML
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, NodeEvent, ScalarEvent

from resolvent.errors import InputError, quote, shorten

MAX_FILE_SIZE = 200_000  # characters: a search with 700 trials of nested algorithms, and a second of checks
_MAX_VALUES = 20_000  # a file without aliases has fewer
_MAX_DEPTH = 30
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
    if isinstance(event, ScalarEvent) and any("\ud800" <= letter <= "\udfff" for letter in event.value):
        raise InputError(f"{line}: {quote(event.value)} has half of a pair of characters (a surrogate): remove it")
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
