"""Differencing: what follows from all sums about subsets of the rows that a site has answered.

A statistic is a sum over a subset of the rows: a count, a sum or a sum of squares of a column. Whoever has the sums
over S subsets has every linear combination of them, and no other linear function of the rows. With the 0/1 matrix A,
whose rows are the subsets, the value of row i is determined exactly if the unit vector e_i is in the row space of A.
Rows that are in the same subsets have equal columns in A: they are a *cell*, and only the sums of cells matter. The
test is exact, in rational numbers.

Sum and sum of squares of a cell of two rows are both values, up to their order.
"""

from collections.abc import Hashable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

_KNOWN_ROWS = 2  # sum and sum of squares of two values are both values


class SmallSums(NamedTuple):
    """What follows from the sums over subsets.

    Attributes:
        rows: the rows whose values are determined: single ones, and pairs from sum and sum of squares.
        sets: sets of fewer rows than the minimum over which a sum is determined, also those of ``rows``.
    """

    rows: frozenset[Hashable]
    sets: frozenset[frozenset[Hashable]]


def small_sums(subsets: Sequence[frozenset[Hashable]], fewest: int) -> SmallSums:
    """The sets of fewer than ``fewest`` rows whose sums follow from the sums over subsets.

    Checked are each cell of rows that are in the same subsets, each difference and each intersection of two subsets,
    and each row of the reduced row echelon form. All single rows that are determined are among them.

    Args:
        subsets: the rows of each sum.
        fewest: smallest number of rows of a sum that may be known.

    Example:
        >>> everybody, others = frozenset(range(10)), frozenset(range(1, 10))
        >>> small_sums([everybody, others], 5).rows
        frozenset({0})
    """
    distinct = [*dict.fromkeys(subset for subset in subsets if subset)]
    cells: dict[tuple[bool, ...], set[Hashable]] = {}
    for row in frozenset().union(*distinct):
        cells.setdefault(tuple(row in subset for subset in distinct), set()).add(row)
    patterns = [*cells]
    matrix = [[Fraction(int(pattern[s])) for pattern in patterns] for s in range(len(distinct))]
    basis = reduced_rows(matrix)
    sets = set()
    for chosen in _candidates(patterns, basis, len(distinct)):
        rows = frozenset(row for number in chosen for row in cells[patterns[number]])
        if 0 < len(rows) < max(fewest, _KNOWN_ROWS + 1) and in_row_space(
                [Fraction(int(number in chosen)) for number in range(len(patterns))], basis):
            sets.add(rows)
    known = frozenset(row for rows in sets if len(rows) <= _KNOWN_ROWS for row in rows)
    return SmallSums(known, frozenset(rows for rows in sets if len(rows) < fewest or len(rows) <= _KNOWN_ROWS))


def _candidates(patterns: Sequence[tuple[bool, ...]], basis: Sequence[Sequence[Fraction]],
                subsets: int) -> Iterator[frozenset[int]]:
    """Sets of cells, by their numbers."""
    yield from (frozenset([number]) for number in range(len(patterns)))
    for first in range(subsets):
        for second in range(subsets):
            yield frozenset(n for n, pattern in enumerate(patterns) if pattern[first] and not pattern[second])
            yield frozenset(n for n, pattern in enumerate(patterns) if pattern[first] and pattern[second])
    yield from (frozenset(n for n, value in enumerate(row) if value) for row in basis)


def reduced_rows(matrix: Sequence[Sequence[Fraction]]) -> list[list[Fraction]]:
    """The reduced row echelon form of a matrix, without rows of zeros.

    Example:
        >>> [[*map(int, row)] for row in reduced_rows([[Fraction(1), Fraction(1)], [Fraction(2), Fraction(2)]])]
        [[1, 1]]
    """
    rows = [[*row] for row in matrix]
    reduced: list[list[Fraction]] = []
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((row for row in rows if row[column]), None)
        if pivot is None:
            continue
        rows = [row for row in rows if row is not pivot]
        first = pivot[column]
        unit = [value / first for value in pivot]
        rows, reduced = ([_minus(row, row[column], unit) for row in part] for part in (rows, reduced))
        reduced.append(unit)
    return reduced


def in_row_space(vector: Sequence[Fraction], basis: Sequence[Sequence[Fraction]]) -> bool:
    """Whether a vector is a linear combination of the rows of a reduced row echelon form."""
    remainder = [*vector]
    for row in basis:
        pivot = next(number for number, value in enumerate(row) if value)
        remainder = _minus(remainder, remainder[pivot], row)
    return not any(remainder)


def _minus(row: Sequence[Fraction], factor: Fraction, other: Sequence[Fraction]) -> list[Fraction]:
    return [*row] if not factor else [a - factor * b for a, b in zip(row, other, strict=True)]
