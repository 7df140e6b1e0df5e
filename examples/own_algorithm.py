"""Inventing an algorithm

An algorithm is a class with two functions: what a party does with the shared model, and what the server does with the
replies. This one is *clipped averaging*: the server moves by the mean of the updates, each of which has at most the
length `clip`. One call tests the contract that all algorithms keep. More: [Ditto in one file](ditto.md),
[architecture](architecture.md#an-algorithm), [testing](api/testing.md).

Picture: test accuracy of training alone, FedAvg and clipped averaging over the rounds; the bands are over the parties.
"""

# %%
from typing import ClassVar

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import pandas as pd

import resolvent as rv
from resolvent.algorithms.algorithm import SharedModelMethod, local_work
from resolvent.math import tree
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem
from resolvent.simulator.record.plots import learning_curves

ROUNDS = 30


# %%
class ClippedAveraging(SharedModelMethod):
    """w~ <- w~ + mean of clip(w_k - w~)."""

    solver: LocalSolver
    clip: float = 1.0
    replies_models: ClassVar[bool] = False
    needs_individual_replies: ClassVar[bool] = False

    def party(self, state, shared, oracle, key, effort):
        w, info = local_work(self.solver, Subproblem(oracle, shared), shared, key, effort)
        update = tree.sub(w, shared)
        factor = jnp.minimum(1, self.clip / jnp.maximum(tree.norm(update), 1e-12))
        return state, jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), update), info

    def server(self, shared, replies, key):
        return tree.axpy(1, replies.mean(), shared), {}


ClippedAveraging(rv.SGD(0.1))

# %% [markdown]
# ## The contract
#
# Is it repeatable, compiled once, right with stragglers and absent parties, and equal to a plain Python loop? One call
# tests all properties that algorithms have.

# %%
from resolvent.testing import check_algorithm  # noqa: E402 - in the cell that needs it

check_algorithm(ClippedAveraging)

# %% [markdown]
# ## The comparison
#
# Without clipping it is FedAvg.

# %%
data = rv.datasets.digits(parties=5, seed=0)
model = rv.models.logistic(64, 10)
solver = rv.SGD(0.1, batch_size=20, epochs=1)
fedavg = rv.simulate(rv.fedavg(solver), model, data, rounds=3, progress=False)
unclipped = rv.simulate(ClippedAveraging(solver, clip=1e9), model, data, rounds=3, progress=False)
assert jnp.allclose(fedavg.server_model["weight"], unclipped.server_model["weight"], atol=1e-5)

# %%
methods = {"alone": rv.local(solver), "FedAvg": rv.fedavg(solver), "clipped": ClippedAveraging(solver, clip=0.5)}
comparison = rv.compare(methods, model, data, rounds=ROUNDS)
comparison

# %%
curves = pd.concat([result.metrics.assign(method=name) for name, result in comparison.results.items()])
figure, axes = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
learning_curves(axes, curves, "accuracy", "test")
