"""Pooled data: one model trained on everybody's samples together, the upper reference of a federation."""

from typing import ClassVar

from resolvent.algorithms.combinators.combinator import Combinator
from resolvent.algorithms.methods.aggregation import ModelAggregation


class PooledData(Combinator):
    """An algorithm whose only party holds the training samples of all parties.

    ``simulate`` runs it on ``problem.pooled()`` and evaluates its model on every party's own samples. A round has no
    communication, because the samples have been collected before; cohorts and stragglers do not apply.

    Attributes:
        inner: a ``ModelAggregation``, whose parties store nothing.

    Raises:
        InputError: the inner algorithm's parties may store something, which one party cannot store for all.

    Example:
        >>> algorithm = rv.combinators.PooledData(rv.fedavg(rv.SGD(0.1)))
    """

    inner: ModelAggregation
    pools_data: ClassVar[bool] = True
