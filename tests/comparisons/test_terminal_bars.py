"""Lines that are printed while progress bars are shown: above the bars on a terminal, and never lost in a pipe."""

import io
import json
import re
import sys
import time
from pathlib import Path

import pytest

from resolvent.cli import commands, terminal
from resolvent.errors import InputError
from resolvent.simulator.record import stopwatch
from resolvent.simulator.record.progress import Remaining, progress_bars


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


def test_the_first_line_of_a_run_comes_before_the_imports(monkeypatch, tmp_path):
    stderr = replace_streams(monkeypatch, io.StringIO())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no experiment 'nope'"):
        commands.run("nope")
    assert stderr.getvalue() == "Loading JAX and nope\n"


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass, and seconds of compilation, which are part of them."""
    seconds = {"now": 0.0, "compiling": 0.0}
    monkeypatch.setattr(time, "monotonic", lambda: seconds["now"])
    monkeypatch.setattr(stopwatch, "compile_seconds", lambda: seconds["compiling"])

    def wait(running, compiling=0.0):
        seconds["now"] += running + compiling
        seconds["compiling"] += compiling

    return wait


def left_after(remaining, *report):
    """The seconds that are left after a report, and whether they are all."""
    remaining.add(*report)
    return remaining.seconds()


def test_the_time_left_takes_compilation_apart_from_rounds(clock):
    """Methods of 100 rounds: each starts for 1 s, compiles for 9 s, and takes 0.1 s a round."""
    remaining = Remaining()
    clock(20)  # what happened before the first report is nobody's
    labels = ("alone", "a", "b", "c")
    for label in labels:
        assert left_after(remaining, label, 0, 100)[0] == 0
    left = 80.0
    for label in labels:
        clock(1)
        remaining.add(label, 0, 100)
        clock(0.1, compiling=9)
        first = left_after(remaining, label, 1, 100)
        clock(0.1)
        second = left_after(remaining, label, 2, 100)
        clock(9.8)
        third = left_after(remaining, label, 100, 100)
        if label == "alone":  # the rounds of nobody are measured yet
            assert first == (pytest.approx(3 * 10.1), False)
        else:
            assert first == (pytest.approx(left - 10.1, rel=0.03), True)
        assert (second[0], third[0]) == pytest.approx((left - 10.2, left - 20), rel=0.03)
        left -= 20
    assert left == pytest.approx(0)


def test_the_time_left_goes_by_while_nothing_is_reported(clock):
    """A method that compiles, and parts without rounds, which are taken to last as long as the mean start."""
    remaining = Remaining()
    for label, total in (("a", 100), ("b", 100), ("report", 1)):
        remaining.add(label, 0, total)
    remaining.add("a", 0, 100)
    clock(4)
    assert remaining.text() == "about 8 s + rounds"  # b and the report take as long as a has taken by now
    clock(6)
    remaining.add("a", 1, 100)
    clock(0.99)
    remaining.add("a", 100, 100)
    assert remaining.text() == "about 21 s left"
    clock(3)
    assert remaining.text() == "about 18 s left"
    clock(9)
    assert remaining.text() == "about 11 s left"  # of the rounds of b and the report: b starts longer than the mean
    remaining.add("b", 1, 100)
    clock(0.99)
    remaining.add("b", 100, 100)
    clock(5)
    assert remaining.text() == "about 6 s left"  # the mean start is 11 s
    remaining.add("report", 1, 1)
    assert remaining.text() == ""


def test_the_first_unit_after_a_long_start_is_no_speed(clock):
    """3 s of tracing and loading, and then rounds of 0.01 s: after the first one nothing is known."""
    remaining = Remaining()
    remaining.add("a", 0, 500)
    clock(3)
    assert left_after(remaining, "a", 1, 500) == (0, False)
    clock(0.02)
    assert left_after(remaining, "a", 3, 500) == (pytest.approx(497 * 0.01), True)


def test_the_time_left_counts_what_every_run_of_a_method_costs(clock):
    """Folds of 10 rounds: from the second on, 2 s before the rounds, which are part of the seconds of a round."""
    remaining = Remaining()
    remaining.add("a", 0, 50)
    clock(1)
    remaining.add("a", 10, 50)
    clock(2)
    remaining.add("a", 10, 50)
    clock(1)
    assert left_after(remaining, "a", 20, 50) == (pytest.approx(30 * 3 / 10), True)


def test_the_time_left_of_recorded_runs_is_within_a_factor_of_two(clock):
    """Reports of real runs in five folds, as [seconds, of them compilation, method, rounds, all rounds].

    What the last method compiles cannot be known before it begins, so one report in twenty may be wrong, while more
    than 2 s are left.
    """
    for reports in json.loads((Path(__file__).parent / "recorded_reports.json").read_text("utf-8")).values():
        remaining, end, now, right, said = Remaining(), reports[-1][0], [0.0, 0.0], 0, 0
        for seconds, compiling, *report in reports:
            clock(seconds - now[0] - (compiling - now[1]), compiling - now[1])
            now = [seconds, compiling]
            left, is_all = left_after(remaining, *report)
            if is_all and end - seconds > 2:
                said += 1
                right += (end - seconds) / 2 <= left <= 2 * (end - seconds)
        assert said > 20
        assert right >= 0.95 * said


def test_a_resumed_task_and_an_unknown_total(clock):
    remaining = Remaining()
    remaining.add("a", 90, 100)
    clock(5)
    remaining.add("a", 92, 100)
    clock(3)
    assert left_after(remaining, "a", 95, 100) == (pytest.approx(5), True)
    assert left_after(remaining, "download", 3, 0)[0] == 0


def test_only_the_bar_that_moves_says_what_is_left(clock, monkeypatch):
    stderr = replace_streams(monkeypatch, Terminal())
    with progress_bars("rounds", width=24) as progress:
        for label in ("FedAvg", "FedProx"):
            progress(label, 0, 300)
        for label in ("FedAvg", "FedProx"):
            for done in (50, 100):
                clock(1)
                progress(label, done, 300)
    last = [re.sub(r"\x1b\[[\d;]*.", "", line).strip() for line in stderr.getvalue().splitlines()][-3:-1]
    assert "FedAvg" in last[0]
    assert last[0].endswith("100/300 rounds 0:00:00")
    assert last[1].endswith("100/300 rounds 0:00:00 about 8 s left")
