"""Centralised training: one model on everybody's samples together, the upper reference of a federation."""

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.averaging import Averaging
from resolvent.algorithms.combinator import Combinator, layers

__all__ = ["Centralised", "is_centralised"]


class Centralised(Combinator):
    """An algorithm whose one party holds the training samples of all.

    ``simulate`` runs it on ``problem.pooled()`` and evaluates its model on every party's own samples. Nothing travels
    in a round, for the samples have been brought together before; cohorts and stragglers do not apply.

    Attributes:
        inner: an ``Averaging``, whose parties keep nothing.

    Raises:
        TypeError: the inner algorithm's parties may keep something, which one party cannot keep for all.
    """

    inner: Averaging

    def __check_init__(self) -> None:
        if not isinstance(self.inner, Averaging):
            raise TypeError(f"Centralised needs an algorithm whose parties keep nothing, got "
                            f"{type(self.inner).__name__}: use fedavg(...) or fedprox(...)")


def is_centralised(algorithm: Algorithm) -> bool:
    """Whether the algorithm, or one within it, trains on everybody's samples together."""
    return any(isinstance(layer, Centralised) for layer in layers(algorithm))
