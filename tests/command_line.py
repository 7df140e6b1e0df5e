"""The command line in this process."""

import contextlib
import io
import sys
from dataclasses import dataclass

import pytest

from resolvent import cli


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


def call_command(*arguments, cwd, columns=200):
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["resolvent", *map(str, arguments)])
        patch.setenv("COLUMNS", str(columns))
        patch.chdir(cwd)
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def call():
    """Run the command line in this process: call(*arguments, cwd=folder)."""
    return call_command
