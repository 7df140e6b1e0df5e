"""Which counts may be told, so that no number of rows below a smallest one can be computed from them.

The reader knows all totals: the rows of the table, of every group and of every level. A cell is safe if another table
with the same told cells and totals has the smallest number there, so that nobody can exclude it.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, PartyState, Replies
from resolvent.algorithms.method import ServerStateMethod
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import ValueProblem


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


class NumbersOracle(Oracle):
    """The numbers of one party; its objective is zero, because nothing is fitted."""

    numbers: Float[Array, " D"]

    @override
    def value(self, w: Vector) -> Float[Array, ""]:
        return jnp.zeros((), self.numbers.dtype)

    @override
    def grad(self, w: Vector) -> Vector:
        return jnp.zeros_like(w)

    @override
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                   memory: PyTree[Any] = ()) -> tuple[Vector, PyTree[Any]]:
        return self.grad(w), memory


class KnownNumbers(ValueProblem):
    """Parties that have numbers.

    Attributes:
        numbers: [N, D].
        sizes: [N] numbers of rows.
    """

    numbers: Float[Array, "N D"]

    def __init__(self, numbers: Any, sizes: Any) -> None:
        self.numbers, self.sizes = jnp.asarray(numbers, float), jnp.asarray(sizes, jnp.int32)
        self.splits, self.score_name, self.higher_is_better = ("train",), "objective", False

    @override
    def init(self, key: Array) -> Vector:
        return jnp.zeros(1, self.numbers.dtype)

    @override
    def oracle(self, k: Int[Array, ""]) -> NumbersOracle:
        return NumbersOracle(self.sizes[k], self.numbers[k])


class NumbersState(NamedTuple):
    """The server's state.

    Attributes:
        model: [1] zero.
        mean: [D] over the parties.
        each: [N, D] the numbers of each party; None if they are not kept.
    """

    model: Vector
    mean: Float[Array, " D"]
    each: Float[Array, "N D"] | None


class SumOfNumbers(ServerStateMethod):
    """One round for the numbers of ``KnownNumbers``. All parties must take part, with equal weights.

    Attributes:
        count: D, how many numbers a party has.
        keeps_each: whether the server keeps the numbers of each party; otherwise it needs their sum only.
    """

    count: int = eqx.field(static=True)
    keeps_each: bool = eqx.field(static=True, default=True)
    replies_models: ClassVar[bool] = False
    norm_multiple: ClassVar[float | None] = None  # the numbers of one party can be far larger than those of others

    @property
    def needs_individual_replies(self) -> bool:
        """Only to keep them."""
        return self.keeps_each

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> NumbersState:
        zero = jnp.zeros(self.count, w0.dtype)
        return NumbersState(w0, zero, jnp.zeros((*shares.shape, self.count), w0.dtype) if self.keeps_each else None)

    @override
    def party(self, state: PartyState, message: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Float[Array, " D"], Info]:
        if not isinstance(oracle, NumbersOracle):
            raise TypeError("SumOfNumbers is for KnownNumbers")
        return state, oracle.numbers, {"model": message, "steps": jnp.ones((), message.dtype)}

    @override
    def server(self, state: NumbersState, replies: Replies, key: Array) -> tuple[NumbersState, Info]:
        each = None if state.each is None else state.each.at[replies.index].set(replies.payload)
        return NumbersState(state.model, replies.mean(), each), {}
