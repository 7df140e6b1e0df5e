"""PooledData training: one model on everybody's samples together, the upper reference of a federation."""

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.combinator import Combinator, layers
from resolvent.algorithms.methods.aggregation import ModelAggregation

__all__ = ["PooledData", "uses_pooled_data"]


class PooledData(Combinator):
    """An algorithm whose one party holds the training samples of all.

    ``simulate`` runs it on ``problem.pooled()`` and evaluates its model on every party's own samples. Nothing travels
    in a round, for the samples have been brought together before; cohorts and stragglers do not apply.

    Attributes:
        inner: an ``ModelAggregation``, whose parties keep nothing.

    Raises:
        TypeError: the inner algorithm's parties may keep something, which one party cannot keep for all.
    """

    inner: ModelAggregation

    def __check_init__(self) -> None:
        if not isinstance(self.inner, ModelAggregation):
            raise TypeError(f"PooledData needs an algorithm whose parties keep nothing, got "
                            f"{type(self.inner).__name__}: use fedavg(...) or fedprox(...)")


def uses_pooled_data(algorithm: Algorithm) -> bool:
    """Whether the algorithm, or one within it, trains on everybody's samples together."""
    return any(isinstance(layer, PooledData) for layer in layers(algorithm))
