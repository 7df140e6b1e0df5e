"""Which counts may be told, so that no number of rows below a smallest one can be computed from them.

The reader knows all totals: the rows of the table, of every group and of every level. A cell is safe if another table
with the same told cells and totals has the smallest number there, so that nobody can exclude it.
"""

import numpy as np
from numpy.typing import NDArray


def joined_levels(counts: NDArray[np.int64], smallest: int) -> NDArray[np.bool_]:
    """Which levels are joined in one.

    These are the levels of 1 to ``smallest`` - 1 rows, and the next larger ones, until two or more have more than
    ``smallest`` rows together. Then each of them can have 1 row, ``smallest`` rows, or any number between.

    Example:
        >>> joined_levels(np.array([40, 2, 9]), 5).tolist()
        [False, True, True]
    """
    joined = (counts > 0) & (counts < smallest)
    others = [j for j in np.argsort(counts, kind="stable") if counts[j] >= smallest]
    while joined.any() and others and (joined.sum() < 2 or counts[joined].sum() <= smallest):
        joined[others.pop(0)] = True
    return joined


def hidden_cells(counts: NDArray[np.int64], smallest: int) -> NDArray[np.bool_]:
    r"""Which cells of a table are not told, if each of its rows and columns has no row or ``smallest`` ones.

    For a cell of a < ``smallest`` rows, the rectangle of least rows is hidden whose two neighbours of the cell have
    more than t = ``smallest`` - a rows:

    .. code-block:: text

        a    b        a + t   b - t
        c    d   ->   c - t   d + t

    The table on the right has the same totals, and the cell has ``smallest`` rows (the hypercube method of Repsilber,
    as in tau-ARGUS). Without such a rectangle, all cells are hidden: then the cell can have as many rows as the smaller
    of its two totals.

    Args:
        counts: [groups, levels].

    Example:
        >>> hidden_cells(np.array([[3, 20, 30], [7, 40, 50], [25, 60, 70]]), 5).tolist()
        [[True, True, False], [True, True, False], [False, False, False]]
    """
    hidden = np.zeros(counts.shape, bool)
    small = [(int(i), int(j)) for i, j in np.argwhere((counts > 0) & (counts < smallest))]
    for i, j in sorted(small, key=lambda cell: int(counts[cell])):
        more = smallest - counts[i, j]
        untold = np.where(hidden, 0, counts)  # what a further rectangle hides
        rectangles = [(untold[k, j] + untold[i, m] + untold[k, m], k, m)
                      for k in np.flatnonzero(counts[:, j] > more) if k != i
                      for m in np.flatnonzero(counts[i] > more) if m != j and counts[k, m] > 0]
        if not rectangles:
            return np.ones_like(hidden)
        _, k, m = min(rectangles)
        hidden[np.ix_(np.array([i, k]), np.array([j, m]))] = True
    return hidden


def told_rows(values: NDArray[np.float64], smallest: int) -> NDArray[np.bool_]:
    """[rows] which values of a group a sum is about: all that are not missing, or fewer.

    If 1 to ``smallest`` - 1 values are missing, those nearest to the median are left out, too, so that ``smallest``
    are: the mean hardly changes, and the choice does not depend on the order of the rows. No value is told if fewer
    than ``smallest`` are left, or if as few differ from the most frequent one, as the sum of a column of 0 and 1 counts
    them.
    """
    told = ~np.isnan(values)
    if 0 < (missing := int((~told).sum())) < smallest:
        places = np.flatnonzero(told)
        distances = np.abs(values[places] - np.median(values[places])) if len(places) else values[places]
        told[places[np.lexsort((values[places], distances))[:smallest - missing]]] = False
    rows = int(told.sum())
    others = rows - int(np.unique(values[told], return_counts=True)[1].max(initial=0))
    return told if rows >= smallest and not 0 < others < smallest else np.zeros_like(told)


def bounds_of_counts(counts: NDArray[np.int64], rows: int,
                     smallest: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bounds for numbers of rows up to some edges: they are known at edges between which there are ``smallest`` rows.

    Args:
        counts: [edges] how many of the rows are at or below each edge; ascending.
    """
    if smallest <= 1:
        return counts, counts
    low, high = np.zeros_like(counts), np.full_like(counts, rows)
    last, since = 0, 0
    for edge, count in enumerate(counts):
        if count - last >= smallest and rows - count >= smallest:  # nothing is said about the largest values
            low[edge:], high[since:edge + 1] = count, count
            last, since = count, edge + 1
    return low, high
