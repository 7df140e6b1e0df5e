r"""Clustered federation (IFCA): the server has several models, and each party trains the one that fits it best.

.. code-block:: text

    party:   j = argmin over j of f_k(w~_j);   w_k = local work on f_k from w~_j;   reply (w_k, j)
    server:  w~_j <- weighted mean of the w_k of cluster j; unchanged if it has no reply
"""

from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, PartyState, Replies
from resolvent.algorithms.keys import root_key, substep_key
from resolvent.algorithms.method import OnePhaseMethod, local_work
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem


class ClusterReply(NamedTuple):
    """A party's reply."""

    model: Vector  # w_k
    cluster: Int[Array, ""]  # j, the model that it started from


class Clustered(OnePhaseMethod):
    """IFCA. A party stores nothing; it chooses its cluster again in every round."""

    solver: LocalSolver
    clusters: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=2)
    spread: Annotated[ArrayLike, "(0, inf)"] = 0.1
    needs_individual_replies: ClassVar[bool] = True
    replies_models: ClassVar[bool] = False

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> Vector:
        """The models of all clusters, leaves [clusters, ...]."""
        leaves, structure = jax.tree.flatten(w0)

        def first_models(number: int, leaf: Array) -> Array:
            # In float32, so that the same models are drawn in both precisions.
            noise = jax.random.normal(substep_key(root_key(0), number), (self.clusters, *leaf.shape), jnp.float32)
            differs = tree.column(jnp.arange(self.clusters) > 0, noise)
            return (leaf + self.spread * jnp.where(differs, noise, 0)).astype(leaf.dtype)

        return jax.tree.unflatten(structure, [first_models(i, jnp.asarray(leaf)) for i, leaf in enumerate(leaves)])

    @override
    def party(self, state: PartyState, models: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, ClusterReply, Info]:
        cluster = self._choose(models, oracle)
        start = tree.rows(models, cluster)
        w, info = local_work(self.solver, Subproblem(oracle, start), start, key, effort)
        return state, ClusterReply(w, cluster), info | {"cluster": cluster}

    def _choose(self, models: Vector, oracle: Oracle) -> Int[Array, ""]:
        """The model with the smallest loss on the party's training samples."""
        losses = jax.lax.map(oracle.value, models)
        return jnp.argmin(jnp.where(jnp.isfinite(losses), losses, jnp.inf)).astype(jnp.int32)

    @override
    def server(self, models: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        chosen = replies.payload.cluster[:, None] == jnp.arange(self.clusters)
        weights = jnp.where(chosen & replies.alive[:, None], replies.weight[:, None], 0)
        totals = jnp.sum(weights, axis=0)
        share = weights / jnp.where(totals > 0, totals, 1)

        def of_leaf(model: Array, rows: Array) -> Array:
            mean = jnp.tensordot(share, rows, axes=(0, 0), precision="highest").astype(model.dtype)
            return jnp.where(tree.column(totals > 0, model), mean, model)

        return jax.tree.map(of_leaf, models, replies.payload.model), {}

    @override
    def personal_model(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        return tree.rows(message, self._choose(message, oracle))

    @override
    def server_model(self, state: Vector) -> None:
        return None
