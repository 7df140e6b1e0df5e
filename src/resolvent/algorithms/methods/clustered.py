r"""Parties that work with those that are like them: IFCA's several models, and FedCAC's critical parameters.

IFCA: the server has several models, and each party trains the one that fits it best.

.. code-block:: text

    party:   j = argmin over j of f_k(w~_j);   w_k = local work on f_k from w~_j;   reply (w_k, j)
    server:  w~_j <- weighted mean of the w_k of cluster j; unchanged if it has no reply

FedCAC: all parties share most parameters; the few that matter most to a party are the mean of the parties to which the
same ones matter, which become fewer from round to round.

.. code-block:: text

    party:   w_k = local work on f_k from v_k
    server:  m_k <- in each array, the share tau of the entries with the largest |(w_k - v_k) w_k|   (critical ones)
             O_kl = |m_k and m_l| / |m_k|;   C_k = k and all l with O_kl >= O_mean + (t + 1)/beta (O_max - O_mean)
             w~ <- weighted mean of the w_k;   v_k <- mean of w_l over C_k where m_k, w~ elsewhere
"""

import math
from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, PartyState, Replies
from resolvent.algorithms.keys import root_key, substep_key
from resolvent.algorithms.method import OnePhaseMethod, local_work
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
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


class CriticalState(NamedTuple):
    """The server's state. A party that has not replied has no critical parameters, and shares all of them."""

    shared: Vector  # w~
    models: Vector  # leaves [N, ...], each party's last w_k
    critical: Vector  # leaves [N, ...] of booleans, m_k
    personal: Vector  # leaves [N, ...], v_k
    t: Int[Array, ""]  # number of the next round


class CriticalParameters(OnePhaseMethod):
    """FedCAC. A party stores nothing: the server knows w_k and v_k, and so computes m_k.

    O_mean and O_max are over the pairs of two parties that have replied. From round ``beta`` on the bound is above
    O_max, and nobody collaborates. As in the paper, the parties of C_k have equal weights; in w~ they have those of the
    run.
    """

    solver: LocalSolver
    tau: Annotated[float, "(0, 1]"] = eqx.field(static=True, default=0.5)
    beta: Annotated[ArrayLike, "[1, inf)"] = 100
    needs_individual_replies: ClassVar[bool] = True
    replies_models: ClassVar[bool] = True

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> CriticalState:
        copies = jax.tree.map(jnp.array, tree.stack(w0, len(shares)))
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, bool), copies)
        return CriticalState(w0, copies, nothing, copies, jnp.array(0))

    @override
    def message(self, state: CriticalState, k: Int[Array, ""]) -> Vector:
        return tree.rows(state.personal, k)

    @override
    def party(self, state: PartyState, start: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        w, info = local_work(self.solver, Subproblem(oracle, start), start, key, effort)
        return state, w, info

    @override
    def server(self, state: CriticalState, replies: Replies, key: Array) -> tuple[CriticalState, Info]:
        new = jax.tree.map(self._critical, replies.payload, tree.rows(state.personal, replies.index))
        models, critical = replies.write(replies.payload, state.models), replies.write(new, state.critical)
        shared = replies.mean()
        with_whom = self._collaborators(critical, state.t)
        share = with_whom / jnp.sum(with_whom, axis=1, keepdims=True)

        def of_leaf(rows: Array, is_critical: Array, common: Array) -> Array:
            mean = jnp.tensordot(share.astype(rows.dtype), rows, axes=1, precision="highest")
            return jnp.where(is_critical, mean, common)

        personal = jax.tree.map(of_leaf, models, critical, shared)
        return (CriticalState(shared, models, critical, personal, state.t + 1),
                {"collaborators": jnp.mean(jnp.sum(with_whom, axis=1) - 1)})

    def _critical(self, rows: Array, starts: Array) -> Array:
        """[C, ...] the share tau of the entries of each row with the largest sensitivities; ties by position."""
        sensitivity = jnp.abs((rows - starts) * rows).reshape(len(rows), -1)
        count = math.ceil(self.tau * sensitivity.shape[1])
        largest = jax.lax.top_k(sensitivity, count)[1]
        mask = jnp.zeros(sensitivity.shape, bool).at[jnp.arange(len(rows))[:, None], largest].set(True)
        return mask.reshape(rows.shape)

    def _collaborators(self, critical: Vector, t: Int[Array, ""]) -> Bool[Array, "N N"]:
        """[k, l] whether party l is in C_k."""
        masks = jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(critical)], axis=1)
        both = jnp.matmul(masks.astype(jnp.float32), masks.T.astype(jnp.float32), precision="highest")
        overlap = both / jnp.maximum(jnp.diagonal(both)[:, None], 1)
        has_replied, itself = masks.any(axis=1), jnp.eye(len(masks), dtype=bool)
        pairs = has_replied[:, None] & has_replied & ~itself
        mean = jnp.sum(jnp.where(pairs, overlap, 0)) / jnp.maximum(jnp.sum(pairs), 1)
        largest = jnp.max(jnp.where(pairs, overlap, 0))
        bound: Array = tree.lerp(mean, largest, (t + 1) / self.beta)
        return pairs & (overlap >= bound) | itself

    @override
    def personal_model(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        return message

    @override
    def server_model(self, state: CriticalState) -> Vector:
        return state.shared
