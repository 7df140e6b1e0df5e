r"""Whether a site's coefficient of a column has the opposite sign of the shared model's.

With the shared linear predictor eta_i of a held-out row, its residual r_i = y_i - p(eta_i) and its inputs x_i (with a 1
for the intercept), the site's own coefficients are estimated by one step of Newton's method from the shared ones, w: of
all columns together, and of each column with the others as in the shared model:

.. code-block:: text

    U = sum_i x_i r_i,   I = sum_i v_i x_i x_i^T
    together   w + I^-1 U             covariance s^2 I^-1
    alone      w_j + U_j / I_jj       variance   s^2 / I_jj

with v_i = p_i (1 - p_i) and s^2 = 1 for two classes; v_i = 1 and s^2 = sum_i r_i^2 / (n - columns) for numbers. U and I
are sums over rows, so that they add up over folds. A column is named if both intervals lie on the other side of zero.
The first would name columns that nearly depend on others: there the maximum of the likelihood is far from any model
that was regularised or not trained to the end, at every site. The second would name columns that correlate with the one
that is reversed. What is shown is the second. Where the change is large, one step is shorter than the maximum is far: a
column that is named differs by more than is said. Half widths hold for all columns and sites together (Bonferroni).

Source: Rao, *Large Sample Tests of Statistical Hypotheses Concerning Several Parameters*, 1948 (score tests).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_COLUMNS = 64
_ROWS_PER_COLUMN = 3  # with fewer rows, a coefficient of the site says nothing

Array = NDArray[np.float64]


class ColumnSums(NamedTuple):
    """Sums over the held-out rows of a site.

    Attributes:
        score: [p + 1] U; the last entry is that of the intercept.
        information: [p + 1, p + 1] I.
        squares: sum of the squared residuals.
        rows: number of rows.
        weights: [p] the shared coefficients, times the number of rows.
        is_binary: whether the labels are two classes.
    """

    score: Array
    information: Array
    squares: float
    rows: int
    weights: Array
    is_binary: bool

    def __add__(self, other: "ColumnSums") -> "ColumnSums":  # type: ignore[override]
        """The sums of the rows of two folds."""
        return ColumnSums(self.score + other.score, self.information + other.information, self.squares + other.squares,
                          self.rows + other.rows, self.weights + other.weights, self.is_binary)


class OppositeColumn(NamedTuple):
    """A column whose coefficient at a site has the opposite sign.

    Attributes:
        shared: the coefficient of the shared model, of a column as it is encoded.
        own: the coefficient at the site, with the other columns as in the shared model.
        low: lower end of its interval.
        high: upper end.
    """

    column: str
    shared: float
    own: float
    low: float
    high: float


def column_sums(x: Array, labels: Array, predictor: Array, weights: Array, *, is_binary: bool) -> ColumnSums:
    """The sums over rows.

    Args:
        x: [n, p] encoded inputs.
        labels: [n] 0 and 1, or numbers.
        predictor: [n] linear predictor of the shared model.
        weights: [p] its coefficients.
    """
    x = np.hstack([x, np.ones((len(x), 1))])
    p = np.exp(-np.logaddexp(0, -predictor)) if is_binary else predictor
    curvature = p * (1 - p) if is_binary else np.ones(len(x))
    residual = labels - p
    return ColumnSums(x.T @ residual, (x * curvature[:, None]).T @ x, float(residual @ residual), len(x),
                      np.asarray(weights, dtype=float) * len(x), is_binary)


def opposite_columns(sums: ColumnSums, names: Sequence[str], comparisons: int) -> tuple[OppositeColumn, ...]:
    """The columns whose coefficient has the opposite sign, the clearest first.

    Args:
        names: of the p inputs.
        comparisons: number of columns and sites that are tested together.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(200, 2))
        >>> y = x @ [1.0, -1.0] + rng.normal(size=200)
        >>> sums = column_sums(x, y, x @ [1.0, 1.0], np.array([1.0, 1.0]), is_binary=False)
        >>> [found.column for found in opposite_columns(sums, ["age", "pulse"], 2)]
        ['pulse']
    """
    from scipy.special import ndtri  # here, because its import takes 0.1 s, and a run does not need it

    p = len(names)
    if sums.rows < _ROWS_PER_COLUMN * (p + 1) or not np.isfinite(sums.score).all():
        return ()
    inverse = np.linalg.pinv(sums.information, hermitian=True)
    scale = 1.0 if sums.is_binary else sums.squares / (sums.rows - p - 1)
    shared, alone = sums.weights / sums.rows, np.diag(sums.information)[:p]
    level = float(-ndtri(0.025 / comparisons))
    with np.errstate(divide="ignore", invalid="ignore"):  # a column of zeros has no coefficient: nan is never opposite
        own = np.stack([shared + sums.score[:p] / alone, shared + (inverse @ sums.score)[:p]])
        reach = level * np.sqrt(scale * np.stack([1 / alone, np.diag(inverse)[:p]]))
        excess = (-np.sign(shared) * own / reach - 1).min(axis=0)
    found = [(float(excess[j]), OppositeColumn(names[j], *map(float, (
        shared[j], own[0, j], own[0, j] - reach[0, j], own[0, j] + reach[0, j])))) for j in range(p) if excess[j] > 0]
    return tuple(column for _, column in sorted(found, key=lambda pair: -pair[0]))
