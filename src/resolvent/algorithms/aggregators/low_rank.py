"""The aggregate of adapters: the mean of their products, not the product of their means."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from resolvent.algorithms.aggregators.aggregator import Aggregator
from resolvent.algorithms.algorithm import Info, Replies
from resolvent.math import tree
from resolvent.math.low_rank import Factors, mean_of_products
from resolvent.math.tree import Vector


class LowRankMean(Aggregator):
    """Of the adapters of ``rv.models.lora`` the mean of the products B A, and of other parameters the mean.

    mean_k(B_k A_k) is not mean_k(B_k) mean_k(A_k). Its rank can be as large as the sum of the ranks of the replies, so
    that no adapters of the same rank have it exactly; the aggregate is the nearest one, by a singular value
    decomposition. ``adapter_error`` in the metrics is the largest relative error over the adapters, in the Frobenius
    norm. With ``frozen_a=True`` the mean of the B_k is exact, and this aggregator is that mean.

    Source: Bai, Chen, Qian, Yao, Li, *Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and
    Client Resources* (FlexLoRA), NeurIPS 2024, for equal ranks.

    Example:
        >>> algorithm = rv.robust(rv.SGD(0.1, batch_size=20, epochs=1), rv.aggregators.LowRankMean())
    """

    linear: ClassVar[bool] = False
    breakdown_point: ClassVar[float] = 0.0
    max_share: ClassVar[None] = None

    @override
    def __call__(self, replies: Replies, centre: Vector | None = None,
                 key: jax.Array | None = None) -> tuple[Vector, Info]:
        weights = replies.weight / jnp.sum(replies.weight)
        errors = []

        def of_part(part: Any) -> Any:
            if not isinstance(part, Factors) or part.A is None:
                return replies.mean(part)
            mean, error = mean_of_products(tree.widen(part), weights)
            errors.append(error)
            return tree.cast(mean, part)

        aggregate = jax.tree.map(of_part, replies.payload, is_leaf=lambda part: isinstance(part, Factors))
        return aggregate, {"adapter_error": jnp.max(jnp.stack(errors))} if errors else {}
