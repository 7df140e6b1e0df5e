"""The sets of rows about which a site has answered: no two of them differ by few rows.

Rows with missing values are left out, so that two regressions with other columns are about other rows. Two labels that
agree in nearly all rows give sums, and updates of a model, that agree in the same rows. Whoever subtracts them has the
sum over the rows in which they differ.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.federation.protocol.limits import Limits, refusal_of_limits
from resolvent.federation.protocol.names import VERSIONS
from resolvent.federation.site.journal import Journal

_FILE = "row-sets.json"


def check_row_set(journal: Journal, version: int, used: NDArray[np.bool_], limits: Limits) -> None:
    """Check and store a set of rows.

    Args:
        journal: the site's journal; the sets are a file beside it.
        version: number of the version, whose rows have a fixed order.
        used: [rows] which of them are used.

    Raises:
        Refusal: the set differs by fewer than ``min_cell`` rows from all rows, or from a set that was used before.
    """
    _check(journal, str(version), [used], [np.ones(len(used), bool)], limits,
           "because of missing values, the rows of this plan differ by {} from those of all columns or of an earlier "
           "plan: fill the values in, or leave the rows out of the table")


def check_label(journal: Journal, question: str, values: NDArray[Any], limits: Limits) -> None:
    """Check and store a label.

    Args:
        journal: see ``check_row_set``.
        question: the version of the table and what else the rows depend on; labels of one question are compared.
        values: [rows] the name of the class, or the number, of each row in the order of the version.
        limits: see ``check_row_set``.

    Raises:
        Refusal: fewer than ``min_cell`` rows have another class or number than with a label that was used before.
    """
    sets = ([values == value for value in np.unique(values)] if values.dtype.kind == "U"
            else [np.asarray(values, np.float64).view(np.uint64)])
    _check(journal, f"labels of {question}", sets, [], limits,
           "{} rows have another class or number than with the label of an earlier plan: the difference of two updates "
           "is their own. Use one of the two labels")


def check_told_rows(journal: Journal, question: str, sets: list[NDArray[np.bool_]], limits: Limits) -> None:
    """Check and store the sets of rows of sums about one column.

    Args:
        journal: see ``check_row_set``.
        question: the version of the table and the column; sets of one question are compared.
        sets: each [rows]: those of one sum.
        limits: see ``check_row_set``.
    """
    _check(journal, question, sets, [], limits, "a sum of this plan differs by {} rows from an earlier one of the same "
           "column: ask for the groups of the earlier plan")


def other_questions(journal: Journal, texts: Mapping[str, str]) -> list[str]:
    """The questions about the rows that were first asked with other texts than these; new ones are stored.

    Args:
        journal: see ``check_row_set``.
        texts: question -> text.
    """
    content = _read(journal)
    if new := {question: [text] for question, text in texts.items() if question not in content}:
        _write(journal, content | new)
    return [question for question, text in texts.items() if content.get(question, [text]) != [text]]


def _check(journal: Journal, key: str, sets: list[NDArray[Any]], first: list[NDArray[Any]], limits: Limits,
           reason: str) -> None:
    content = _read(journal)
    known = content.setdefault(key, [_text(rows) for rows in first])
    for rows in sets:
        for other in known:
            differing = int(np.sum(_rows(other, rows) != rows))
            if 0 < differing < limits.min_cell:
                raise refusal_of_limits({"min_cell": reason.format(differing)}, limits)
    if new := [text for text in map(_text, sets) if text not in known]:
        content[key] = known + new
        _write(journal, content)


def _read(journal: Journal) -> dict[str, list[str]]:
    path = journal.path.parent / VERSIONS / _FILE
    content: dict[str, list[str]] = json.loads(path.read_text("utf-8")) if journal.has_file(path) else {}
    return content


def _write(journal: Journal, content: Mapping[str, list[str]]) -> None:
    journal.write_file(journal.path.parent / VERSIONS / _FILE,
                       lambda path: path.write_text(json.dumps(content), "utf-8"))


def _text(rows: NDArray[Any]) -> str:
    return (np.packbits(rows) if rows.dtype == bool else rows).tobytes().hex()


def _rows(text: str, like: NDArray[Any]) -> NDArray[Any]:
    """The rows of a text; of another kind than ``like``: ``like`` itself, which differs in no row."""
    data = np.frombuffer(bytes.fromhex(text), np.uint8)
    if len(data) != len(_text(like)) // 2:
        return like
    return np.unpackbits(data, count=len(like)).astype(bool) if like.dtype == bool else data.view(like.dtype)
