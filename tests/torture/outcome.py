"""The outcome of one case, and the table of all."""

import re
from collections import Counter
from typing import NamedTuple

RIGHT, REFUSED, WRONG, TRACEBACK = "right", "refused", "wrong result", "traceback"
ENDED, SKIPPED = "ended by a library", "skipped"
MAX_LINE = 2000
_PYTHON_TRACEBACK = "Traceback (most recent call last)"


class Outcome(NamedTuple):
    """What happened in a case, or in several with the same verdict.

    Attributes:
        kind: the part of the campaign.
        case: the case in words, with the command that repeats it.
        verdict: ``right``: the result is that of a run without faults, or the input is accepted and valid;
            ``refused``: one line says what is wrong; ``wrong result`` or ``traceback``: a failure; ``ended by a
            library`` that is not Python, without a result; ``skipped``: this machine cannot make the fault.
        detail: the reason.
        count: number of cases.
    """

    kind: str
    case: str
    verdict: str
    detail: str = ""
    count: int = 1

    @property
    def is_failure(self) -> bool:
        return self.verdict in (WRONG, TRACEBACK)


class Answer(NamedTuple):
    """What a command answered: its exit code (negative: the signal that ended it) and its output."""

    code: int
    out: str
    err: str

    @property
    def has_traceback(self) -> bool:
        return _PYTHON_TRACEBACK in self.out + self.err

    @property
    def error_lines(self) -> list[str]:
        """The lines of an error message."""
        return [line for line in self.err.splitlines() if line.startswith(("error:", "interrupted"))]


def judge_refusal(answer, names=()):
    """(verdict, detail) of a command that did not succeed.

    It is refused if it ended with an exit code of its own, and one line of at most ``MAX_LINE`` characters says what is
    wrong and has one of the names.
    """
    text = f"exit code {answer.code}: {answer.err.strip()[-1500:]}"
    if answer.has_traceback:
        return TRACEBACK, text
    if answer.code < 0:
        return WRONG, f"ended by signal {-answer.code}: {answer.err.strip()[-1500:]}"
    lines = answer.error_lines
    if answer.code == 0 or len(lines) != 1 or len(lines[0]) > MAX_LINE:
        return WRONG, f"not one line with an error; {text}"
    if names and not any(name in lines[0] for name in names):
        return WRONG, f"the error names none of {', '.join(names)}; {text}"
    return REFUSED, lines[0]


def table(outcomes):
    """The outcomes by kind, as lines of Markdown."""
    counts = {}
    for outcome in outcomes:
        counts.setdefault(outcome.kind, Counter())[outcome.verdict] += outcome.count
    total = sum(counts.values(), Counter())
    head = ("kind", "cases", "wrong results", "tracebacks", "refused", "right or accepted", ENDED, SKIPPED)
    rows = [(kind, c.total() - c[SKIPPED], c[WRONG], c[TRACEBACK], c[REFUSED], c[RIGHT], c[ENDED], c[SKIPPED])
            for kind, c in [*counts.items(), ("all", total)]]
    lines = [head, ("---", *["---:"] * (len(head) - 1)), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def failure_line(outcome):
    """A failure in words, with the command that repeats it."""
    return f"{outcome.verdict.upper()} in {outcome.case}\n    " + re.sub(r"\n", "\n    ", outcome.detail.strip())
