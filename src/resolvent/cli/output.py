"""Standard output and standard error, also if they are closed, full or broken. It imports no other package."""

import contextlib
import json
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from shutil import get_terminal_size
from textwrap import shorten, wrap
from typing import Any

PROCESS_VARIABLE = "RESOLVENT_PROCESS"  # NUMBER/COUNT/ADDRESS of a process that another one has started


def is_started_process() -> bool:
    """Whether another process of the command has started this one, and prints for it."""
    return PROCESS_VARIABLE in os.environ


def prepare_output() -> None:
    """Replace closed streams, and print characters that a terminal does not have by their number."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def flush_output() -> None:
    """Write what is in the buffer of standard output."""
    sys.stdout.flush()


def name_output(error: OSError) -> OSError:
    """An error that names no file, with the name of standard output if that cannot be written."""
    if error.filename is None:
        try:
            sys.stdout.write("\n")
            sys.stdout.flush()
        except OSError:
            return OSError(error.errno, error.strerror, "standard output")
    return error


def print_texts(title: str, texts: Mapping[str, str]) -> None:
    """Print names with a text each, which is wrapped beside its name."""
    width, left = get_terminal_size().columns, max(map(len, texts)) + 2
    lines = [line for name, text in texts.items() for line in wrap(
        text, width, initial_indent=f"{name:{left}}", subsequent_indent=" " * left, break_long_words=False,
        break_on_hyphens=False)]
    sys.stdout.write("\n".join([title, *lines, "\n"]))


def print_names(kinds: Mapping[str, Collection[str]]) -> None:
    """Print a line for each kind: how many names it has, and those that fit."""
    columns, left = get_terminal_size().columns, max(map(len, kinds)) + 1
    for kind, names in kinds.items():
        head = f"{kind:{left}}{len(names):>3}  "
        sys.stdout.write(head + shorten(", ".join(names), columns - len(head), placeholder=" ...") + "\n")


def print_json(content: Any) -> None:
    """Print plain data as JSON."""
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def discard_output() -> None:
    """Flush both streams; connect one that cannot be written to the null device, or Python reports it at the end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_error(message: str) -> None:
    """Print an error to standard error on one line; nothing if the message is empty."""
    if message:
        is_terminal = sys.stderr.isatty()
        title = "\x1b[1;31merror:\x1b[0m" if is_terminal else "error:"
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{title} {message}\n")
            sys.stderr.flush()


def print_note(message: str) -> None:
    """Print a note to standard error on one line."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"note: {message}\n")
        sys.stderr.flush()
