"""No test depends on the clock: what waits for something waits for at least ten minutes, because machines are busy.

A wait whose end is the expected case has the comment ``# until it ends`` on its line. CPU time may be limited.
"""

import ast
from pathlib import Path

import pytest

TESTS = sorted(p for p in Path(__file__).parent.rglob("*.py") if p != Path(__file__))
_SHORTEST = 600  # seconds
_EXEMPT = "# until it ends"
_WAITS = {"wait", "join", "communicate"}


def is_short(node):
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value < _SHORTEST


def reads_clock(node):
    names = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    return not names.isdisjoint({"monotonic", "perf_counter"})


def short_limits(source):
    """The lines on which a test waits for less than ten minutes, or compares wall time with less."""
    lines, result = source.splitlines(), []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            is_method = isinstance(node.func, ast.Attribute) and node.func.attr in _WAITS
            waits = any(key.arg == "timeout" and is_short(key.value) for key in node.keywords) or (
                is_method and len(node.args) == 1 and is_short(node.args[0]))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            waits = reads_clock(node.left) and is_short(node.right)
        elif isinstance(node, ast.Compare):
            waits = reads_clock(node.left) and is_short(node.comparators[0])
        else:
            waits = False
        if waits and _EXEMPT not in lines[node.lineno - 1]:
            result.append(node.lineno)
    return result


def test_no_wait_is_short():
    lines = {path.name: short_limits(path.read_text(encoding="utf-8")) for path in TESTS}
    assert {name: numbers for name, numbers in lines.items() if numbers} == {}


@pytest.mark.parametrize("line", [
    "process.wait(5)", "process.communicate(timeout=60)", "end = time.monotonic() + 120",
    "assert time.monotonic() - begin < 30", "thread.join(10)", "subprocess.run(command, timeout=1.5)"])
def test_short_limits_are_seen(line):
    assert short_limits(line) == [1]


@pytest.mark.parametrize("line", [
    "process.wait()", "process.communicate(timeout=600)", "end = time.monotonic() + LIMIT", "', '.join(names)",
    "time.sleep(0.01)", "assert time.process_time() - begin < 2", "site.wait(6)  # until it ends"])
def test_other_lines_are_accepted(line):
    assert short_limits(line) == []
