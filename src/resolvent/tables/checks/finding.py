"""Findings of the checks of data."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
_ORDER: tuple[Severity, ...] = ("error", "warning", "note")
_MAX_EXAMPLES = 3


@dataclass(frozen=True)
class Finding:
    """A fact about the data that a user should know before the first round.

    Attributes:
        kind: a word for the kind of finding, such as ``missing`` or ``units``.
        severity: ``error``: the run would be refused; ``warning``: results can be wrong or misleading; ``note``:
            nothing has to be done.
        message: the fact, with values.
        advice: what to do, such as a setting of the experiment file.
        column: the column; None if it is not about a column.
        site: the site; None if it is about the whole table.
        value: the number or the text that the finding is about.
    """

    kind: str
    severity: Severity
    message: str
    advice: str
    column: str | None = None
    site: str | None = None
    value: float | str | None = None

    @property
    def line(self) -> str:
        """The finding in one line."""
        return f"{self.severity}: {self.message}: {self.advice}"

    def record(self) -> dict[str, Any]:
        """The finding as plain values."""
        return asdict(self)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings: errors first, then warnings, then notes."""
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.severity)))


def examples(values: Sequence[Any]) -> str:
    """The first values, as text.

    >>> examples([7, 12, 40, 41])
    '7, 12, 40, ...'
    """
    return ", ".join([*map(str, values[:_MAX_EXAMPLES]), *["..."] * (len(values) > _MAX_EXAMPLES)])
