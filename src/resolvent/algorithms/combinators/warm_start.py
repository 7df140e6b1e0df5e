"""Warm start: an algorithm that begins with a trained model instead of the first one of the problem."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from resolvent.algorithms.combinators.combinator import Combinator, Wrapped
from resolvent.errors import InputError, shorten
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle


class WarmStart(Combinator):
    """The inner algorithm, whose server and parties begin with a trained model.

    ``simulate(start=)`` makes it from a model or a result.

    Attributes:
        inner: the inner algorithm.
        start: the first model, with the structure and the shapes of the problem's models.

    Raises:
        InputError: when it is used: the model has other parameters than those of the problem.

    Example:
        >>> result = rv.simulate(rv.fedavg(rv.SGD(0.1)), rv.models.logistic(64, 10), rv.datasets.digits(), rounds=2,
        ...                      progress=False)
        >>> algorithm = rv.combinators.WarmStart(rv.fedprox(rv.SGD(0.1)), result.server_model)
    """

    start: Vector

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> Wrapped:
        return super().init(self._like(w0), shares)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Wrapped:
        return super().init_party(self._like(w0), oracle, key)

    def _like(self, w0: Vector) -> Vector:
        """The start in the dtypes of the problem's models."""
        expected, actual = _shapes(w0), _shapes(self.start)
        if expected != actual:
            raise InputError(f"the start has the parameters {shorten(actual)}, and the models of this run have "
                             f"{shorten(expected)}: give a model of the same kind, or leave start out")
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(self.start)]
        return tree.cast(jax.tree.unflatten(jax.tree.structure(w0), leaves), w0)


def _shapes(w: Vector) -> str:
    """Names and shapes of the parameters."""
    return ", ".join(f"{name or 'value'} {list(jnp.shape(leaf))}" for name, leaf in tree.named_leaves(w))
