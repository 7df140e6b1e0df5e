"""Differencing over the answers about a site's table: all that were stored, and those that a plan would add."""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.site.table_versions import AnsweredVersion, TableVersions
from resolvent.red_team.differencing import small_sums
from resolvent.tables.table_files import read_table_file
from resolvent.tables.text_formats import TextFormat

_QUESTION = re.compile(r"(column|weights|classes) .* of ([a-z+]+) rows, min_cell \d+", re.DOTALL)


class Differencing(NamedTuple):
    """What follows from all answers about a table together.

    Attributes:
        rows: number of rows of which a value is determined.
        sums: number of sums over fewer rows than ``min_cell`` that are determined, over all columns.
        counts: number of counts of fewer rows than ``min_cell``, but not 0, that are determined.
    """

    answers: int
    rows: int
    sums: int
    counts: int


class _Count(NamedTuple):
    """A number of rows that is known: those of a level or class among some rows."""

    rows: frozenset[Hashable]
    number: int


def attack_answers(folder: Path, file: SiteFile) -> Differencing:
    """Everything that follows from the answers in a folder of versions.

    A row that the table no longer has counts as one with a value in each column.

    Raises:
        InputError: the table cannot be read.
    """
    text = TextFormat(file.separator, file.decimal, file.encoding)  # type: ignore[arg-type]
    frame, _ = read_table_file(file.table, text, (), file.cells, lambda column: True)
    versions = [*TableVersions(folder, file.limits.min_cell).answered(frame)]
    return difference(versions, frame, file.columns or {}, file.limits.min_cell)


def difference(versions: Sequence[AnsweredVersion], frame: pd.DataFrame, columns: Mapping[str, str],
               min_cell: int) -> Differencing:
    """As ``attack_answers``, for answers in memory.

    Args:
        versions: the answers about each version.
        columns: name of a column in the federation -> its name in the table.
        min_cell: smallest number of rows about which something may be known.
    """
    subsets: dict[str, list[frozenset[Hashable]]] = defaultdict(list)
    counts: dict[str, list[_Count]] = defaultdict(list)
    total = 0
    for version in versions:
        for question, answer in version.answers.items():
            match = _QUESTION.fullmatch(question)
            if match is None:
                raise ValueError(f"the question {question!r} is not known to the attack")
            rows = frozenset[Hashable]().union(*(version.splits[split] for split in match[2].split("+")))
            total += 1
            if match[1] == "column":
                local = columns.get(answer["name"], answer["name"])
                present = _present(rows, frame, local)
                if answer["kind"] == "text":
                    _add_levels(counts, answer["name"], answer["levels"], rows)
                elif answer["count"]:
                    subsets[answer["name"]].append(present)
                    _add_two_values(counts, answer["name"], present, frame, local)
            elif match[1] == "classes":
                _add_levels(counts, question.split(" of ")[0], answer, rows)
    keys = {name: tuple(dict.fromkeys(of_column)) for name, of_column in subsets.items()}
    small = {key: small_sums(key, min_cell) for key in {*keys.values()}}  # most columns have the same subsets
    rows_known = frozenset[Hashable]().union(*(of_key.rows for of_key in small.values()))
    sums = sum(len(small[key].sets) for key in keys.values())
    return Differencing(total, len(rows_known), sums, sum(_small_counts(of, min_cell) for of in counts.values()))


def _present(rows: Iterable[Hashable], frame: pd.DataFrame, column: str) -> frozenset[Hashable]:
    """The rows that have a value in the column, if the table still has it."""
    if column not in frame.columns:
        return frozenset(rows)
    has_value = frame[column].notna().to_numpy()
    return frozenset(row for row in rows if not isinstance(row, int) or has_value[row])


def _add_levels(counts: dict[str, list[_Count]], name: str, levels: Mapping[str, int],
                rows: frozenset[Hashable]) -> None:
    """The number of rows of each level that is named, and of all others together; 0 hides a number."""
    for level, number in levels.items():
        if number:
            counts[f"{name} = {level}"].append(_Count(rows, number))
    counts[f"{name} = others"].append(_Count(rows, len(rows) - sum(levels.values())))


def _add_two_values(counts: dict[str, list[_Count]], name: str, rows: frozenset[Hashable], frame: pd.DataFrame,
                    column: str) -> None:
    """Number, mean and deviation of a column with two values tell how many rows have each of them."""
    if column not in frame.columns or not all(isinstance(row, int) for row in rows):
        return
    values = frame[column].iloc[[row for row in rows if isinstance(row, int)]].value_counts()
    if len(values) == 2:
        for value, number in values.items():
            counts[f"{name} = {value}"].append(_Count(rows, int(number)))


def _small_counts(counts: Sequence[_Count], min_cell: int) -> int:
    """The counts, and differences of counts of nested subsets, that are of fewer rows than ``min_cell``, but not 0."""
    return len({*_numbers(counts, min_cell)})


def _numbers(counts: Sequence[_Count], min_cell: int) -> Iterator[tuple[frozenset[Hashable], int]]:
    for count in counts:
        if 0 < count.number < min_cell:
            yield count.rows, count.number
    for larger, smaller in permutations(counts, 2):
        if smaller.rows < larger.rows and 0 < larger.number - smaller.number < min_cell:
            yield larger.rows - smaller.rows, larger.number - smaller.number
