"""An aggregator of your own

The server of any method with a shared model can aggregate by a rule of yours: here the mean of the replies that are
nearest to the coordinate-wise median. `check_aggregator` tests what methods expect of it, and `rv.robust` uses it.
More: [aggregators](api/aggregators.md), [defending a federation](defences.md).

Picture: test accuracy with four of twenty parties that send their updates in the opposite direction, five times as
long: the mean fails, the own rule does not.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import resolvent as rv
from resolvent.math import tree
from resolvent.testing import check_aggregator


class NearestHalf(rv.aggregators.Aggregator):
    """The mean of the half of the replies that is nearest to the coordinate-wise median."""

    linear: ClassVar[bool] = False
    breakdown_point: ClassVar[float] = 0.5

    def __call__(self, replies, centre=None, key=None):
        median, info = rv.aggregators.CoordinateMedian()(replies)
        distance = jax.vmap(lambda reply: tree.norm(tree.sub(reply, median)))(replies.payload)
        distance = jnp.where(replies.weight > 0, distance, jnp.inf)
        order = jnp.argsort(distance)
        reached = jnp.cumsum(replies.weight[order]) <= 0.5 * jnp.sum(replies.weight)
        near = jnp.zeros_like(reached).at[order].set(reached | (jnp.arange(len(order)) == 0))
        weight = jnp.where(near, replies.weight, 0.0)
        return jax.tree.map(lambda leaf: jnp.tensordot(weight / jnp.sum(weight), leaf, 1), replies.payload), info


check_aggregator(NearestHalf())

data, model = rv.datasets.digits(parties=20, classes_per_party=10, seed=0), rv.models.logistic(64, 10)
solver = rv.SGD(0.1, batch_size=20)
attack = rv.attacks.SignFlip(5.0)
figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for label, algorithm in {"mean": rv.fedavg(solver), "nearest half": rv.robust(solver, NearestHalf())}.items():
    result = rv.simulate(rv.attacked(algorithm, attack, share=0.2), model, data, rounds=40, evaluate_every=2)
    accuracy = result.scores("test").mean(axis=1)
    axes.plot(accuracy, label=label)
assert accuracy.iloc[-1] > 0.85
axes.set(xlabel="round", ylabel="test accuracy")
axes.legend()
