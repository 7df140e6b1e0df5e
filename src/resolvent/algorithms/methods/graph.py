r"""Operator splitting without a server: a party averages with its neighbours in a graph. Simulated only.

P_H, the mean over the parties, is replaced by a symmetric mixing matrix W with rows that sum to 1:

.. code-block:: text

    z_k <- (1 - alpha) u_k + alpha P_f(u_k)           as in (24); or gradient steps
    u <- (1 - gamma) u + gamma ((1 - beta) z + beta W z)

With one gradient step of length s this is decentralised gradient descent (adapt, then combine). Its fixed point is
biased: z = u - s grad f(u) with u = W z. EXTRA corrects it by the difference to the round before and has the exact
minimiser of the mean as its fixed point:

.. code-block:: text

    u^1 = W u^0 - s grad f(u^0)
    u^(t+2) = (I + W) u^(t+1) - (I + W)/2 u^t - s (grad f(u^(t+1)) - grad f(u^t))

Sources: Xiao, Boyd, *Fast linear iterations for distributed averaging* (Metropolis weights); Nedic, Ozdaglar,
*Distributed subgradient methods for multi-agent optimization*; Shi, Ling, Wu, Yin, *EXTRA*.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Replies
from resolvent.algorithms.methods.splitting import Splitting, SplittingMessage
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector

Edges = tuple[tuple[int, int], ...]


def metropolis_weights(edges: Edges, parties: int) -> NDArray[np.float64]:
    """[N, N] symmetric mixing matrix: 1/(1 + the larger degree) for neighbours, the rest of a row on its diagonal.

    The disagreement of the parties falls in each round by the second largest absolute eigenvalue, which is below 1.
    """
    adjacency = np.zeros((parties, parties))
    for i, j in edges:
        if i == j or not (0 <= i < parties and 0 <= j < parties):
            raise InputError(f"edges: ({i}, {j}) must name two of the {parties} parties, 0 to {parties - 1}")
        adjacency[i, j] = adjacency[j, i] = 1
    degrees = adjacency.sum(axis=1)
    weights: NDArray[np.float64] = adjacency / (1 + np.maximum(degrees[:, None], degrees[None]))
    weights += np.diag(1 - weights.sum(axis=1))
    if np.linalg.matrix_power(weights, parties).min() == 0:
        raise InputError("edges: the graph is not connected, so that its parts never agree: add an edge between them")
    return weights


class GraphState(NamedTuple):
    """All parties' vectors, which are stored together only because the graph is simulated."""

    u: Vector  # leaves [N, ...], the parties' models
    z: Vector  # leaves [N, ...], the parties' models after their local steps
    previous: Vector  # leaves [N, ...], u of the round before
    t: Int[Array, ""]  # number of the next round


class GraphSplitting(Splitting):
    """Splitting, decentralised gradient descent or EXTRA on a graph of parties with equal weights.

    An absent party keeps its z.

    Attributes:
        edges: the pairs of neighbours.
        extra: whether EXTRA's correction is made.
    """

    edges: Edges = eqx.field(static=True, default=())
    extra: bool = eqx.field(static=True, default=False)

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> GraphState:  # type: ignore[override]
        copies = jax.tree.map(jnp.array, tree.stack(w0, len(shares)))
        metropolis_weights(self.edges, len(shares))  # a wrong graph is refused before the first round
        return GraphState(copies, copies, copies, jnp.array(0))

    @override
    def server(self, state: GraphState, replies: Replies,  # type: ignore[override]
               key: Array) -> tuple[GraphState, Info]:
        parties = len(jax.tree.leaves(state.u)[0])
        if self.extra and len(replies.index) != parties:
            raise InputError(f"EXTRA needs all {parties} parties in each round: use full participation")
        weights = jnp.asarray(metropolis_weights(self.edges, parties), tree.dtype(state.u))

        def mixed(vectors: Vector) -> Vector:
            return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, axes=1, precision="highest"), vectors)

        _, alpha, _, _ = self.relaxation.at(state.t)
        z = replies.write(tree.lerp(tree.rows(state.u, replies.index), replies.payload, alpha), state.z)
        if not self.extra:
            return GraphState(self.relaxation.mix(state.t, state.u, z, mixed(z)), z, state.u, state.t + 1), {}
        mixed_u, mixed_previous = mixed(state.u), mixed(state.previous)
        # z - u is a step of -s grad f(u). In round 0, u is the round before too, and its step is 0.
        moved = jax.tree.map(lambda u, wu, v, wv: jnp.where(state.t == 0, wu, u + wu - (v + wv) / 2),
                             state.u, mixed_u, state.previous, mixed_previous)
        steps = tree.sub(tree.sub(z, state.u), tree.sub(state.z, state.previous))
        return GraphState(tree.axpy(1.0, steps, moved), z, state.u, state.t + 1), {}

    @override
    def model_message(self, state: GraphState,  # type: ignore[override]
                      k: Int[Array, ""]) -> SplittingMessage:
        return SplittingMessage(tree.rows(state.u, k), self.relaxation.at(state.t)[0])

    @override
    def server_model(self, state: GraphState) -> Vector:  # type: ignore[override]
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), state.u)
