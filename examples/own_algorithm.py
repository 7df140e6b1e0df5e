"""Inventing an algorithm

An algorithm is a class with two functions: what a party does with the shared model, and what the server does with the
replies. This one is *clipped averaging*: the server moves by the mean of the updates, each of which has at most the
length `clip`. One call tests the contract that all algorithms keep, and one writes the figures and the tables of a
study with five peers on three data sets. More: [research](research.md), [architecture](architecture.md#an-algorithm),
[testing](api/testing.md).

Picture: test accuracy of clipped averaging and five peers over the rounds, on three data sets; the bands are one
standard deviation over five seeds.
"""

# %%
from typing import ClassVar

import jax
import jax.numpy as jnp
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.preprocessing import StandardScaler

import resolvent as rv
from resolvent.extend import LocalSolver, SharedModelMethod, Subproblem, local_work, tree

ROUNDS = 15
SEEDS = 5


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
# ## An identity
#
# Without clipping it is FedAvg.

# %%
data = rv.datasets.digits(parties=5, seed=0)
model = rv.models.logistic(64, 10)
solver = rv.SGD(0.1, batch_size=20, epochs=1)
fedavg = rv.simulate(rv.fedavg(solver), model, data, rounds=3, progress=False)
unclipped = rv.simulate(ClippedAveraging(solver, clip=1e9), model, data, rounds=3, progress=False)
assert jnp.allclose(fedavg.server_model["weight"], unclipped.server_model["weight"], atol=1e-5)

# %% [markdown]
# ## The study
#
# Five peers, three data sets, several seeds. Every run has the same cohorts and minibatches for all methods.

# %%
methods = {"clipped": ClippedAveraging(solver, clip=0.5), "FedAvg": rv.fedavg(solver),
           "FedProx": rv.fedprox(solver, mu=0.1), "Scaffold": rv.scaffold(solver), "RFA": rv.rfa(solver),
           "FedAvg+": rv.fedavg_plus(solver)}


def divided(bunch, parties):
    """A table of scikit-learn over parties whose classes differ."""
    return rv.partitions.divide(StandardScaler().fit_transform(bunch.data).astype("float32"), bunch.target,
                                rv.partitions.Dirichlet(parties, concentration=0.5), validation=0.2, test=0.4)


data_sets = {"digits": rv.datasets.digits(parties=10, classes_per_party=4, seed=0),
             "cancer": divided(load_breast_cancer(), 8), "wine": divided(load_wine(), 4)}
comparisons = {
    name: rv.compare(methods, rv.models.logistic(data.input_shape[0], len(data.classes)), data, rounds=ROUNDS,
                     seeds=SEEDS, clock=rv.VirtualClock(), out=f"runs/{name}", overwrite=True)
    for name, data in data_sets.items()}
study = rv.Study({name: f"runs/{name}" for name in comparisons})
study

# %% [markdown]
# What does it show? A paragraph for a paper, and figures. A filled point differs from FedAvg by Holm's test.

# %%
print(study.paragraph())
study.plot("differences", reference="FedAvg")

# %%
figure = study.plot("curves")

# %% [markdown]
# One call writes all figures, tables, the paragraph, and the settings as an appendix.

# %%
study.paper("figures", reference="FedAvg")
