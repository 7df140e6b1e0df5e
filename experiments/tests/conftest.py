"""The command line in this process; and what runs when: at every commit the tests of what is committed."""

import contextlib
import io
from pathlib import Path

import pytest

from command_line import Outcome
from experiments.__main__ import main

_FOLDER = Path(__file__).parent
_AT_EVERY_COMMIT = ("test_committed.py", "test_public_interface.py", "test_reference.py")


def pytest_collection_modifyitems(items):
    """Most tests of the experiments run at night, and if what they need has changed."""
    for item in items:
        if _FOLDER in item.path.parents and item.path.name not in _AT_EVERY_COMMIT:
            item.add_marker(pytest.mark.when_changed)


@pytest.fixture
def call(monkeypatch):
    """Run ``python -m experiments``: call(*arguments, cwd=folder)."""
    def run(*arguments, cwd):
        monkeypatch.chdir(cwd)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*map(str, arguments)])
        return Outcome(code, out.getvalue(), err.getvalue())

    return run
