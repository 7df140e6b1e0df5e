"""Lines that are printed while progress bars are shown: above the bars on a terminal, and never lost in a pipe."""

import io
import sys

from resolvent.cli import terminal
from resolvent.simulator.record.progress import progress_bars


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def replace_streams(monkeypatch, stdout):
    """A terminal as standard error. Not in a fixture: pytest replaces the streams between fixture and test."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def test_a_note_begins_on_a_line_of_its_own(monkeypatch):
    """Before a note the bars are erased: the control sequence for this, or a line end, precedes it."""
    stderr = replace_streams(monkeypatch, Terminal())
    with progress_bars("rounds") as progress:
        for i in range(3):
            progress("FedAvg", i, 3)
            terminal.print_note(f"note {i} [of 3]")
    text = stderr.getvalue()
    for i in range(3):
        before = text[:text.index(f"note {i} [of 3]")]
        assert before.endswith(("\x1b[2K", "\n", "\r"))


def test_standard_output_goes_into_the_pipe(monkeypatch):
    pipe = io.StringIO()
    stderr = replace_streams(monkeypatch, pipe)
    with progress_bars("rounds") as progress:
        progress("FedAvg", 1, 3)
        terminal.print_line("a result")
    assert pipe.getvalue() == "a result\n"
    assert "a result" not in stderr.getvalue()
