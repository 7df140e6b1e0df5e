r"""How much the sums that a site answers can say about one of its rows: leverages in the span of all their columns.

Every answer about a table is made of sums of products of columns: X'X, X'WX, X'y, counts, means, gradients of linear
models. Whoever has the sums can combine them. With the columns X [n, r] of everything that was answered, combinations
of the products with a column z are c'X'z = v'z, with v = Xc any vector of the span of X. What this says about one row
is bounded by the row's leverage, which this module keeps below a limit:

.. math:: h_i = x_i\,(X'X)^{+}\,x_i' = \|Q_i\|^2, \quad Q \text{ an orthonormal basis of the span.}

1. *No combination isolates a row.* For v in the span, v = QQ'v, so that v_i = Q_i Q'v and, by Cauchy and Schwarz,
   v_i^2 <= h_i |v|^2. The indicator of row i (v_i = 1, v = 0 elsewhere) is in the span only if h_i = 1, however it is
   composed.
2. *Signal over noise.* The other rows' values are noise to somebody who does not know them. If they have the standard
   deviation s, v'z has the signal v_i z_i in noise of the standard deviation s sqrt(|v|^2 - v_i^2), whose ratio is at
   most sqrt(h_i / (1 - h_i)) z_i / s, and some v reaches it: 1 at h_i = 1/2, 2 at 0.8.
3. *Every combination is about many rows.* Its effective number of rows |v|^2 / max v_i^2 is at least 1 / max_i h_i.

Rounds with coefficients of their own add columns: X'WX has those of WX beside those of X, and a gradient the slopes of
the rows. In a sum with other sites a row of this one has about its leverage times the share of this site's rows: with
rows of one kind everywhere, X'X of all is X'X of the site divided by the share.

What weakens this: rows that somebody knows are no noise, and a rare value of a binary column is known to be 0 or 1, so
that a ratio of 2 finds it. ``min_cell`` holds beside it.

The constant column is in the span, so that columns count centred. Each is scaled to the length one. A part of a column
counts if it is longer than ``PRECISION`` times the column: answers have all digits of double precision, in which
smaller parts are rounding errors.

The basis grows in blocks, each projected twice and factorised by Householder's reflections. A further plan costs O(n r)
for each of its columns, and nearly dependent columns, such as those of the rounds of a fit, keep the basis orthonormal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PRECISION = 1e-12
"""Length of the smallest part of a column that counts as a direction, relative to the column before it is centred."""
_BLOCK = 32  # columns that are added at a time
_FAR = 0.1  # columns of which more is new are orthogonal after one projection


class LeverageError(Exception):
    """A column lets a combination of answers say too much about one row.

    Attributes:
        column: the name of the column.
    """

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(reason)
        self.column = column


@dataclass(frozen=True, eq=False)
class Span:
    """The span of columns about the same rows.

    Attributes:
        basis: [r, n] an orthonormal basis, a row for each direction.
        leverages: [n] the leverage of each row of the table.
    """

    basis: NDArray[np.float64]
    leverages: NDArray[np.float64]

    @classmethod
    def of_rows(cls, rows: int) -> "Span":
        """The span of the constant column."""
        return cls(np.full((1, rows), rows**-0.5), np.full(rows, 1 / rows))

    @property
    def rank(self) -> int:
        """The number of directions."""
        return len(self.basis)

    @property
    def largest(self) -> float:
        """The largest leverage of a row."""
        return float(self.leverages.max())

    def extended(self, columns: Mapping[str, NDArray[Any]], largest: float | None = None,
                 density: float | None = None) -> "Span":
        """The span with further columns; a column that is in it already changes nothing.

        Args:
            columns: name -> [n] values, or [n, c] several columns of one name.
            largest: the largest allowed leverage of a row; None: any.
            density: the largest allowed number of directions for each row; None: any.

        Raises:
            LeverageError: a column exceeds one of them, the first in this order.
        """
        new = [(name, column) for name, values in columns.items()
               for column in np.reshape(values, (len(self.leverages), -1)).T]
        span = self
        for first in range(0, len(new), _BLOCK):
            names, block = zip(*new[first:first + _BLOCK], strict=True)
            span = span._with_block(names, np.array(block, np.float64), largest, density)
        return span

    def _with_block(self, names: Sequence[str], block: NDArray[np.float64], largest: float | None,
                    density: float | None) -> "Span":
        sizes = _lengths(block)
        block -= block.mean(axis=1, keepdims=True)
        left = _lengths(block) / np.where(sizes > 0, sizes, 1)  # of each column, as a part of its length
        numbers = np.flatnonzero(left > PRECISION)
        block, left = _scaled(block[numbers]), left[numbers]
        for _ in range(2):  # the second time with the length one, for columns that are nearly in the span
            block -= (block @ self.basis.T) @ self.basis
            lengths = _lengths(block)
            new = np.flatnonzero(left * lengths > PRECISION)
            block, left, numbers = _scaled(block[new]), (left * lengths)[new], numbers[new]
            if (lengths > _FAR).all():
                break
        kept = _independent(block, left)
        block = np.linalg.qr(block[kept].T)[0].T
        block = np.linalg.qr((block - (block @ self.basis.T) @ self.basis).T)[0].T  # rounding errors were scaled up
        leverages = self.leverages
        for rank, (j, direction) in enumerate(zip(numbers[kept], block, strict=True), self.rank + 1):
            leverages = np.minimum(leverages + direction**2, 1)  # without the last rounding error
            if largest is not None and leverages.max() > largest:
                raise LeverageError(names[j], f"with it, a combination of the answers has the leverage "
                                    f"{leverages.max():.3g} in a row, more than {largest:.3g}")
            if density is not None and rank > density * len(leverages):
                raise LeverageError(names[j], f"with it, the answers have {rank} independent columns, more than "
                                    f"{density:.3g} for each of {len(leverages)} rows")
        return Span(np.concatenate([self.basis, block]), leverages)

    @classmethod
    def read(cls, path: Path) -> "Span":
        """The stored span."""
        basis = np.load(path)
        return cls(basis, (basis**2).sum(axis=0))

    def write(self, path: Path) -> None:
        """Store the span."""
        with path.open("wb") as file:
            np.save(file, self.basis)


def _independent(block: NDArray[np.float64], left: NDArray[np.float64]) -> NDArray[np.intp]:
    """The numbers of the vectors, of the length one, that are not nearly in the span of those before them.

    They follow from Householder's factorisation, whose rounding errors do not grow with the dependence of the vectors.

    Args:
        left: what is left of each vector, as a part of its column's length.
    """
    kept = np.arange(len(block))
    while True:
        triangle = np.linalg.qr(block[kept].T, mode="r")
        parts = np.zeros(len(kept))  # there are at most as many directions as rows
        parts[:len(triangle)] = np.abs(np.diag(triangle)) * left[kept[:len(triangle)]]
        dependent = np.flatnonzero(parts <= PRECISION)
        if not dependent.size:
            return kept
        kept = np.delete(kept, dependent[0])


def _lengths(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", vectors, vectors)))


def _scaled(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return vectors / _lengths(vectors)[:, None]
