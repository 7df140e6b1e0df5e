"""Standard output and standard error, also if they are closed, full or broken. It imports no other package."""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any


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
