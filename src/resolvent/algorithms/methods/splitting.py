r"""Operator splitting: FedAvg, FedProx, FedSplit, FedPi and FedRP as one scheme.

.. code-block:: text

    z <- (1 - alpha) u + alpha P_f(u)        (24)   every party's own proximal step of length eta
    w <- (1 - beta) z + beta P_H(z)          (25)   P_H: everybody's weighted mean
    u <- (1 - gamma) u + gamma w             (26)

(1, 1, 1) is FedProx, with k gradient steps in place of P_f FedAvg; (2, 2, 1) FedSplit, (2, 2, 1/2) FedPi, (2, 1, 1)
FedRP; (1, 2, 1) is the variant (22), with a gradient step (21).

Source: Malekmohammadi, Shaloudegi, Hu, Yu, *An Operator Splitting View of Federated Learning*, (24)-(26) and Table 1.
"""

from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.algorithms.algorithm import Info, Method, PartyState, Phase, Replies, local_work
from resolvent.algorithms.schedules import Constant, Schedule, as_schedule
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["DecentralisedSplitting", "LocalStep", "Relaxation", "Splitting", "SplittingState"]

LocalStep = Literal["proximal", "gradient"]
Message = tuple[Vector, Array]


class Relaxation(eqx.Module):
    """The constants or schedules of (24)-(26).

    Attributes:
        eta: length of the proximal step; the party's penalty is 1/eta.
        alpha: over-relaxation of the parties' step, in [0, 2].
        beta: over-relaxation of the mean, in [0, 2].
        gamma: averaging with the last iterate, in [0, 1].
    """

    eta: Schedule | ArrayLike
    alpha: Schedule | ArrayLike = 1.0
    beta: Schedule | ArrayLike = 1.0
    gamma: Schedule | ArrayLike = 1.0

    def __check_init__(self) -> None:
        for name, most in (("alpha", 2), ("beta", 2), ("gamma", 1)):
            value = getattr(self, name)
            value = value.first if isinstance(value, Constant) else value
            if isinstance(value, int | float) and not 0 <= value <= most:
                raise ValueError(f"{name}={value} must lie in [0, {most}]: outside, the scheme is not nonexpansive")
        first = self.eta.first if isinstance(self.eta, Schedule) else self.eta
        if isinstance(first, int | float) and not first > 0:
            raise ValueError(f"eta={first} must be positive")

    def at(self, t: Int[Array, ""]) -> tuple[Array, Array, Array, Array]:
        """(eta, alpha, beta, gamma) of round t."""
        eta, alpha, beta, gamma = (as_schedule(v)(t) for v in (self.eta, self.alpha, self.beta, self.gamma))
        return eta, alpha, beta, gamma

    def mix(self, t: Int[Array, ""], u: Vector, z: Vector, mean: Vector) -> Vector:
        """(25) and (26) from u, z and P_H(z)."""
        _, _, beta, gamma = self.at(t)
        return tree.lerp(u, tree.lerp(z, mean, beta), gamma)


def party_step(solver: LocalSolver, local: LocalStep, u: Vector, eta: Array, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[Vector, Info]:
    """P_f(u), approximately, with weight 1/eta around u; or the solver's plain gradient steps from u."""
    # A step below the square of the rounding unit moves nothing; its inverse must stay finite.
    least = jnp.finfo(eta.dtype).eps ** 2  # type: ignore[no-untyped-call]
    weight = 1 / jnp.maximum(eta, least) if local == "proximal" else 0.0
    return local_work(solver, Subproblem(oracle, u, weight), u, key, effort)


class SplittingState(eqx.Module):
    """The server's memory of the centralised form.

    Attributes:
        u: leaves [N, ...], what each party is sent.
        z: leaves [N, ...], each party's last z; absent ones keep theirs.
        mean: P_H(z), the shared model.
        t: the number of the next round.
    """

    u: Vector
    z: Vector
    mean: Vector
    t: Int[Array, ""]


class Splitting(Method):
    """The centralised form: the server holds every u_k; a party computes P_f(u_k) and keeps nothing.

    With absent parties it is Algorithm 1 of the paper: an absent party keeps its z, the mean is over those present.

    Attributes:
        solver: the local solver.
        relaxation: eta, alpha, beta, gamma.
        local: the parties' proximal step, or plain gradient steps by the solver (FedAvg).
    """

    solver: LocalSolver
    relaxation: Relaxation
    local: LocalStep = eqx.field(static=True, default="proximal")
    replies_models: ClassVar[bool] = True
    iterate_by_party: ClassVar[bool] = True

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> SplittingState:
        """Every u and z at the first model."""
        copies = jax.tree.map(jnp.array, tree.stack(w0, len(weights)))
        return SplittingState(copies, copies, w0, jnp.array(0))

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        """A party keeps nothing."""
        return ()

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One phase."""
        return (Phase(self._message, self._party, self._server),)

    def _message(self, state: SplittingState, k: Int[Array, ""]) -> Message:
        return tree.rows(state.u, k), self.relaxation.at(state.t)[0]

    def _party(self, state: PartyState, message: Message, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        p, info = party_step(self.solver, self.local, *message, oracle, key, effort)
        return state, p, info

    def _server(self, state: SplittingState, replies: Replies, key: Array) -> tuple[SplittingState, Info]:
        _, alpha, _, _ = self.relaxation.at(state.t)
        moved = tree.lerp(tree.rows(state.u, replies.index), replies.payload, alpha)
        old = tree.rows(state.z, replies.index)
        kept = jax.tree.map(lambda new, last: jnp.where(replies.column(new), new, last), moved, old)
        z = jax.tree.map(lambda all_, rows: all_.at[replies.index].set(rows), state.z, kept)
        mean = replies.mean(moved)
        u = jax.vmap(lambda u_k, z_k: self.relaxation.mix(state.t, u_k, z_k, mean))(state.u, z)
        return SplittingState(u, z, mean, state.t + 1), {}

    def model_message(self, state: SplittingState, k: Int[Array, ""]) -> Message:
        """P_H(z), for the u_k are no models: at FedPi's fixed point they are w* + eta grad f_k(w*)."""
        return state.mean, self.relaxation.at(state.t)[0]

    def personal_model(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        """P_H(z)."""
        return message[0]

    def server_model(self, state: SplittingState) -> Vector:
        """P_H(z)."""
        return state.mean

    def iterate(self, state: SplittingState) -> Vector:
        """U, which the scheme maps to the next."""
        return state.u

    def with_iterate(self, state: SplittingState, u: Vector) -> SplittingState:
        """The same state at another u."""
        return SplittingState(u, state.z, state.mean, state.t)

    def mean(self, state: SplittingState) -> Vector:
        """P_H(z)."""
        return state.mean

    def with_mean(self, state: SplittingState, mean: Vector) -> SplittingState:
        """The state that (25) and (26) would have led to from another P_H(z). Source: the paper, B.8."""
        _, _, beta, gamma = self.relaxation.at(jnp.maximum(state.t - 1, 0))
        shift = tree.sub(mean, state.mean)
        u = jax.vmap(lambda u_k: tree.axpy(beta * gamma, shift, u_k))(state.u)
        return SplittingState(u, state.z, mean, state.t)


class DecentralisedSplitting(Method):
    """The decentralised form: a party holds its u_k and z_k, and only z_k and the mean of all z travel.

    Under full participation it is the centralised form; with absent parties it is another algorithm, because an absent
    party does not update its u_k. Source: the paper, section 4.

    Attributes:
        solver: the local solver.
        relaxation: eta, alpha, beta, gamma.
        local: the parties' proximal step, or plain gradient steps by the solver.
    """

    solver: LocalSolver
    relaxation: Relaxation
    local: LocalStep = eqx.field(static=True, default="proximal")
    needs_individual_replies: ClassVar[None] = None
    replies_models: ClassVar[bool] = True

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> tuple[Vector, Array]:
        """The mean of all z, and the number of the next round."""
        return w0, jnp.array(0)

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> tuple[Vector, Vector]:
        """U and z at the first model."""
        return w0, w0

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One phase."""
        return (Phase(lambda state, k: state, self._party, self._server),)

    def own_iterate(self, own: tuple[Vector, Vector], message: tuple[Vector, Array]) -> Vector:
        """u_k: (25)-(26) of the last round; in round 0 there is none, and u, z and the mean are all the first model."""
        (u, z), (mean, t) = own, message
        return self.relaxation.mix(jnp.maximum(t - 1, 0), u, z, mean)

    def work(self, u: Vector, own: tuple[Vector, Vector], message: tuple[Vector, Array], oracle: Oracle, key: Array,
             effort: Float[Array, ""]) -> tuple[tuple[Vector, Vector], Vector, Info]:
        """(24) from u."""
        eta, alpha, _, _ = self.relaxation.at(message[1])
        p, info = party_step(self.solver, self.local, u, eta, oracle, key, effort)
        z = tree.lerp(u, p, alpha)
        return (u, z), z, info

    def _party(self, own: tuple[Vector, Vector], message: tuple[Vector, Array], oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[tuple[Vector, Vector], Vector, Info]:
        return self.work(self.own_iterate(own, message), own, message, oracle, key, effort)

    def closing(self, state: tuple[Vector, Array]) -> tuple[Vector, Array]:
        """What a party's next u_k needs beside its own z_k: the new mean."""
        return state

    def shared_iterate(self, state: tuple[Vector, Array]) -> Vector:
        """Nothing: the mean follows from the z_k."""
        return jnp.zeros(0)

    def with_shared_iterate(self, state: tuple[Vector, Array], point: Vector) -> tuple[Vector, Array]:
        """The same state."""
        return state

    def _server(self, state: tuple[Vector, Array], replies: Replies,
                key: Array) -> tuple[tuple[Vector, Array], Info]:
        return (replies.mean(), state[1] + 1), {}

    def personal_model(self, state: tuple[Vector, Vector], message: tuple[Vector, Array], oracle: Oracle) -> Vector:
        """P_H(z), for the u_k are no models."""
        return message[0]

    def server_model(self, state: tuple[Vector, Array]) -> Vector:
        """P_H(z)."""
        return state[0]
