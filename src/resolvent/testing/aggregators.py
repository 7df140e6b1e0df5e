"""The contract of aggregators: absent replies, symmetry, linearity and the breakdown point."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.algorithms.aggregators.aggregator import Aggregator
from resolvent.algorithms.algorithm import Replies
from resolvent.math.tree import Vector
from resolvent.testing.example import require

_FAR = 1e8
_TOLERANCE = 1e-5  # iterations stop at a residual of 1e-6


def check_aggregator(aggregator: Aggregator, parties: int = 23) -> None:
    """Check that an aggregator treats replies as the methods expect.

    A reply of weight zero has no influence; the order of the replies and the sum of their weights have none, unless
    the aggregator makes random choices; a shift of all replies and of the server's model shifts the aggregate; equal
    replies are the aggregate. An aggregator that is ``linear`` is so, and malicious replies fewer than the breakdown
    point allows move it a bounded distance. Dtypes stay, and the aggregator can be compiled.

    Args:
        aggregator: the aggregator.
        parties: number of replies.

    Raises:
        AssertionError: a property does not hold. The message says what was expected and what to do.

    Example:
        >>> check_aggregator(rv.aggregators.TrimmedMean(0.2))
    """
    with jax.enable_x64(True):
        _Case(aggregator, parties).check()


def _as_vector(tree: Vector) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)


class _Case:
    """An aggregator, its replies and a server's model, in float64."""

    def __init__(self, aggregator: Aggregator, parties: int) -> None:
        rng = np.random.default_rng(0)
        self.aggregator, self.name, self.parties = aggregator, type(aggregator).__name__, parties
        self.points = {"a": rng.normal(size=(parties, 2)), "b": {"c": rng.normal(size=(parties, 1, 2))}}
        self.weights = rng.uniform(1, 2, parties)
        self.centre = {"a": rng.normal(size=2), "b": {"c": rng.normal(size=(1, 2))}}
        self.call = jax.jit(lambda aggregator, replies, centre, key: aggregator(replies, centre, key))

    def aggregate(self, points: Vector, weights: np.ndarray | None = None, centre: Vector | None = None,
                  index: np.ndarray | None = None, key: int | None = None, dtype: Any = None) -> np.ndarray:
        """The aggregate as one vector."""
        return _as_vector(self.tree(points, weights, centre, index, key, dtype))

    def tree(self, points: Vector, weights: np.ndarray | None = None, centre: Vector | None = None,
             index: np.ndarray | None = None, key: int | None = None, dtype: Any = None) -> Vector:
        """The aggregate, with the structure of the points."""
        # NumPy: eager operations of JAX would each be compiled for every dtype.
        w = np.asarray(self.weights if weights is None else weights, dtype)
        points, centre = (jax.tree.map(lambda leaf: np.asarray(leaf, dtype), x)
                          for x in (points, self.centre if centre is None else centre))
        shares = (w / w.sum(dtype=np.float64)).astype(w.dtype)
        arrays: tuple[Any, ...] = (w, np.arange(self.parties) if index is None else index, w > 0, shares)
        replies = Replies(points, *arrays)
        result, info = self.call(self.aggregator, replies, centre, None if key is None else jax.random.key(key))
        require(isinstance(info, dict) and all(jnp.shape(value) == () for value in info.values()),
                f"{self.name} must return the aggregate and a dictionary of numbers")
        return result

    def check(self) -> None:
        """Check all properties of the contract."""
        expected = self.aggregate(self.points)
        self._check_types()
        far = jax.tree.map(lambda leaf: np.array(leaf), self.points)
        for leaf in jax.tree.leaves(far):
            leaf[3] = _FAR
        weights = np.where(np.arange(self.parties) == 3, 0, self.weights)
        self._same(self.aggregate(far, weights), self.aggregate(self.points, weights),
                   "a reply of weight zero, which is absent, changes the aggregate: leave it out, whatever its values")
        self._same(self.aggregate(self.points, 3 * self.weights), expected,
                   "the aggregate changes with the sum of the weights: divide by it")
        shift = jax.tree.map(lambda c: np.full(c.shape, 1.5), self.centre)
        moved = self.aggregate(jax.tree.map(np.add, self.points, shift),
                               centre=jax.tree.map(np.add, self.centre, shift))
        self._same(moved, expected + 1.5, "a shift of all replies and of the server's model does not shift the "
                                          "aggregate")
        equal = jax.tree.map(lambda c: np.repeat(c[None], self.parties, axis=0), self.centre)
        self._same(self.aggregate(equal), _as_vector(self.centre), "equal replies are not the aggregate")
        if not self._is_random():
            order = np.random.default_rng(1).permutation(self.parties)
            self._same(self.aggregate(jax.tree.map(lambda p: p[order], self.points), self.weights[order], index=order),
                       expected, "the order of the replies changes the aggregate: identify parties by replies.index")
        self._check_linear(expected)
        self._check_breakdown()

    def _check_types(self) -> None:
        for dtype in (jnp.float16, jnp.float32, jnp.float64):
            result = self.tree(self.points, dtype=dtype)
            require(jax.tree.map(np.shape, result) == jax.tree.map(np.shape, self.centre)
                    and {leaf.dtype for leaf in jax.tree.leaves(result)} == {jnp.dtype(dtype)},
                    f"{self.name} of {jnp.dtype(dtype).name} replies has another structure, shape or dtype than a "
                    "reply: compute in tree.widen(...) and return tree.cast(...)")

    def _is_random(self) -> bool:
        first, second = (self.aggregate(self.points, key=key) for key in (0, 1))
        return not np.array_equal(first, second)

    def _check_linear(self, expected: np.ndarray) -> None:
        if not self.aggregator.linear:
            return
        rng = np.random.default_rng(2)
        others = jax.tree.map(lambda p: rng.normal(size=p.shape), self.points)
        both = jax.tree.map(lambda a, b: 2 * a - b, self.points, others)
        self._same(self.aggregate(both), 2 * expected - self.aggregate(others),
                   "linear is True, but the aggregate of 2x - y is not that of x times 2 minus that of y: set it to "
                   "False")

    def _check_breakdown(self) -> None:
        point = float(self.aggregator.breakdown_point)
        require(0 <= point <= 0.5, f"{self.name}.breakdown_point is {point}: it lies in [0, 1/2]")
        malicious = max(math.ceil(point * self.parties - 1e-9) - 1, 0)
        is_malicious = np.arange(self.parties) >= self.parties - malicious
        moved = [self._distance(is_malicious, far) for far in (1e3, _FAR)]
        require(max(moved) < 100, f"{self.name}: {malicious} malicious replies of {self.parties} of size {_FAR:g} move "
                                  f"the aggregate by {max(moved):.3g}, where the honest replies have size 1, but "
                                  f"breakdown_point is {point:.3g}: return a smaller one")

    def _distance(self, is_malicious: np.ndarray, far: float) -> float:
        def replaced(leaf: np.ndarray) -> np.ndarray:
            return np.where(is_malicious.reshape(-1, *[1] * (leaf.ndim - 1)), far, leaf)
        return float(np.linalg.norm(self.aggregate(jax.tree.map(replaced, self.points), np.ones(self.parties))))

    def _same(self, actual: Any, expected: Any, message: str) -> None:
        require(bool(np.allclose(actual, expected, rtol=_TOLERANCE, atol=_TOLERANCE)), f"{self.name}: {message}")
