"""Tables in HTML, for objects that a notebook shows."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_MAX_ROWS = 20


def html_facts(title: str, facts: Mapping[str, object]) -> str:
    """A title, and a table with the name and the value of each fact."""
    rows = "".join(f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>"
                   f"{escape(str(value))}</td></tr>" for name, value in facts.items())
    return f"<p><strong>{escape(title)}</strong></p><table>{rows}</table>"


def html_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with a header. It shows the first 20 rows, and the number of all rows if there are more."""
    header = "".join(f"<th>{escape(str(column))}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(as_html_number(value))}</td>" for value in row) + "</tr>"
                   for row in rows[:_MAX_ROWS])
    more = f"<p>The first {_MAX_ROWS} of {len(rows)} rows.</p>" if len(rows) > _MAX_ROWS else ""
    return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>{more}"


def as_html_number(value: Any) -> str:
    """A value as text; decimal numbers with 3 digits after the point."""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
