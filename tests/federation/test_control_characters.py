"""Names of columns, sites, classes and data have no character that a terminal obeys, and the terminal obeys none."""

import sys
from io import StringIO

import numpy as np
import pandas as pd
import pytest

from resolvent.cli import terminal
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError
from resolvent.federation.protocol.files import Consortium
from resolvent.federation.protocol.refusals import is_column_name
from resolvent.tables.checks.finding import Finding
from resolvent.tables.party_tables import from_frame

ESCAPE, ROWS = "\x1b[2J", np.arange(12)
FRAME = pd.DataFrame({"site": np.where(ROWS < 6, "a", "b"), "age": ROWS * 1.5, "ill": np.where(ROWS % 2, "yes", "no")})


def _error_of(build):
    try:
        build()
    except InputError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize("control", [ESCAPE, "\x07", "\x9b", "\x7f", "\r", "\n"])
def test_a_name_with_a_control_character_is_refused_wherever_it_stands(control):
    def table(frame=FRAME, **options):
        return from_frame(frame, party="site", label="ill", **options)

    name, x, y = f"a{control}b", [np.eye(3)], [[0, 1, 0]]
    refused = {
        "column": lambda: table(FRAME.rename(columns={"age": name})),
        "party": lambda: table(FRAME.replace("a", name)),
        "class": lambda: table(FRAME.replace("yes", name)),
        "party of arrays": lambda: FederatedData.from_arrays(x, y, parties=[name]),
        "class of arrays": lambda: FederatedData.from_arrays(x, [[name, "b", "b"]]),
        "feature": lambda: FederatedData.from_arrays(x, y, features=[name, "b", "c"]),
        "data": lambda: FederatedData.from_arrays(x, y, name=name),
        "site of a federation": lambda: Consortium(name="f", host="h", lead="a@b.org", sites=(name, "b")),
    }
    messages = {}
    for case, build in refused.items():
        messages[case] = _error_of(build)
    assert {case: text for case, text in messages.items() if control in text or text == "accepted"} == {}
    assert not is_column_name(name)


def test_the_terminal_shows_a_control_character_and_does_not_obey_it(monkeypatch):
    """Whatever the command prints: a level of a column is a value of the table, and can be anything."""
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}", StringIO())
    terminal.print_line(f"line {ESCAPE}\nsecond")
    terminal.print_note(f"note {ESCAPE}")
    terminal.print_table(terminal.findings_table([Finding("levels", "note", f"fact {ESCAPE}", f"advice {ESCAPE}")]))
    printed = sys.stdout.getvalue() + sys.stderr.getvalue()
    assert printed.count(r"\x1b[2J") == 4
    assert "\x1b" not in printed
    assert "second" in printed


@pytest.mark.parametrize("name", ["server", "lead", "authority", "Authority"])
def test_a_site_has_no_name_of_another_folder_of_the_kits(name):
    with pytest.raises(InputError, match="another participant, or of a folder beside the kits"):
        Consortium(name="f", host="h", lead="a@b.org", sites=(name, "b"))
