"""A small network whose normalisation has a state, and data of which each party has its own distribution."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import resolvent as rv

RATE, MOMENTUM = 0.2, 0.9
SMALL = rv.SGD(RATE, batch_size=3, epochs=1)


class Network(eqx.Module):
    body: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key)
        self.body, self.head = eqx.nn.Linear(3, 4, key=keys[0]), eqx.nn.Linear(4, 3, key=keys[1])
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch", momentum=MOMENTUM)

    def __call__(self, x, state):
        h, state = self.norm(self.body(x), state)
        features = jnp.tanh(h)
        return (self.head(features), features), state


@cache
def problem(sizes=(8, 8, 8)):
    rng = np.random.default_rng(6)
    x = [rng.normal(3 * rng.normal(size=3), 1 + k, size=(n, 3)) for k, n in enumerate(sizes)]
    y = [rng.integers(0, 3, n) for n in sizes]
    data = rv.FederatedData.from_arrays(x, y, validation=0, test=0, classes=["0", "1", "2"])
    return rv.problems.LearningProblem(rv.models.from_equinox(Network, returns_features=True), data)
