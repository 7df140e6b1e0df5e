r"""Operator splitting: FedAvg, FedProx, FedSplit, FedPi and FedRP as one scheme.

.. code-block:: text

    z <- (1 - alpha) u + alpha P_f(u)        (24)   every party's proximal step of length eta
    w <- (1 - beta) z + beta P_H(z)          (25)   P_H: the weighted mean over the parties
    u <- (1 - gamma) u + gamma w             (26)

(1, 1, 1) is FedProx, and FedAvg if k gradient steps replace P_f; (2, 2, 1) is FedSplit, (2, 2, 1/2) FedPi and (2, 1, 1)
FedRP; (1, 2, 1) is the variant (22), with a gradient step (21).

Source: Malekmohammadi, Shaloudegi, Hu, Yu, *An Operator Splitting View of Federated Learning*, (24)-(26) and Table 1.
"""

from typing import ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Iterate, Part, PartyPart, PartyState, Replies
from resolvent.algorithms.method import OnePhaseMethod, local_work
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.schedules import Constant, Schedule, as_schedule
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

LocalStep = Literal["proximal", "gradient"]


class Relaxation(eqx.Module):
    """The constants or schedules of (24)-(26).

    Attributes:
        eta: length of the proximal step; the party's penalty weight is 1/eta.
        alpha: over-relaxation of the parties' step, in [0, 2].
        beta: over-relaxation of the mean, in [0, 2].
        gamma: averaging with the last iterate, in [0, 1].
    """

    eta: Schedule | ArrayLike
    alpha: Schedule | ArrayLike = 1.0
    beta: Schedule | ArrayLike = 1.0
    gamma: Schedule | ArrayLike = 1.0

    def __check_init__(self) -> None:
        for name, upper in (("alpha", 2), ("beta", 2), ("gamma", 1)):
            value = getattr(self, name)
            value = value.first if isinstance(value, Constant) else value
            if isinstance(value, int | float) and not 0 <= value <= upper:
                raise InputError(f"{name}={value} must lie in [0, {upper}]: outside, the scheme is not nonexpansive")
        first = self.eta.first if isinstance(self.eta, Schedule) else self.eta
        if isinstance(first, int | float) and not first > 0:
            raise InputError(f"eta={first} must be positive")

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
    """An approximation of P_f(u), with weight 1/eta around u; or the solver's plain gradient steps from u."""
    # A step below the square of the rounding unit moves nothing; its inverse must stay finite.
    smallest = jnp.finfo(eta.dtype).eps ** 2  # type: ignore[no-untyped-call]
    weight = 1 / jnp.maximum(eta, smallest) if local == "proximal" else 0.0
    return local_work(solver, Subproblem(oracle, u, weight), u, key, effort)


class SplittingState(NamedTuple):
    """The server's state in the centralised form."""

    u: Vector  # leaves [N, ...], the vectors that are sent to the parties
    z: Vector  # leaves [N, ...], each party's last z; absent parties keep theirs
    mean: Vector  # P_H(z), the shared model
    t: Int[Array, ""]  # number of the next round


class SplittingMessage(NamedTuple):
    """The message of the centralised form."""

    point: Vector  # u_k; or P_H(z), when a party asks for its personal model
    eta: Array  # length of the proximal step


class Splitting(OnePhaseMethod):
    """The centralised form: the server holds every u_k; a party computes P_f(u_k) and stores nothing.

    With absent parties it is Algorithm 1 of the paper: an absent party keeps its z, and the mean is over the parties
    that are present.

    Attributes:
        relaxation: eta, alpha, beta, gamma.
        local: the parties' ``proximal`` step, or plain ``gradient`` steps by the solver (FedAvg).
    """

    solver: LocalSolver
    relaxation: Relaxation
    local: LocalStep = eqx.field(static=True, default="proximal")
    needs_individual_replies: ClassVar[bool] = True
    replies_models: ClassVar[bool] = True

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> SplittingState:
        copies = jax.tree.map(jnp.array, tree.stack(w0, len(shares)))
        return SplittingState(copies, copies, w0, jnp.array(0))

    @override
    def message(self, state: SplittingState, k: Int[Array, ""]) -> SplittingMessage:
        return SplittingMessage(tree.rows(state.u, k), self.relaxation.at(state.t)[0])

    @override
    def origin(self, message: SplittingMessage) -> Vector:
        return message.point

    @override
    def party(self, state: PartyState, message: SplittingMessage, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        p, info = party_step(self.solver, self.local, message.point, message.eta, oracle, key, effort)
        return state, p, info

    @override
    def server(self, state: SplittingState, replies: Replies, key: Array) -> tuple[SplittingState, Info]:
        _, alpha, _, _ = self.relaxation.at(state.t)
        z_cohort = tree.lerp(tree.rows(state.u, replies.index), replies.payload, alpha)
        z = replies.write(z_cohort, state.z)
        mean = replies.mean(z_cohort)
        u = jax.vmap(lambda u_k, z_k: self.relaxation.mix(state.t, u_k, z_k, mean))(state.u, z)
        return SplittingState(u, z, mean, state.t + 1), {}

    @override
    def model_message(self, state: SplittingState, k: Int[Array, ""]) -> SplittingMessage:
        # P_H(z), because the u_k are not models: at FedPi's fixed point they are w* + eta grad f_k(w*).
        return SplittingMessage(state.mean, self.relaxation.at(state.t)[0])

    @override
    def personal_model(self, state: PartyState, message: SplittingMessage, oracle: Oracle) -> Vector:
        return message.point

    @override
    def server_model(self, state: SplittingState) -> Vector:
        return state.mean

    @property
    @override
    def iterate(self) -> Iterate:
        return Iterate(Part(lambda state: state.u, lambda state, u: state._replace(u=u)), by_party=True,
                       mean=Part(lambda state: state.mean, self._with_mean))

    def _with_mean(self, state: SplittingState, mean: Vector) -> SplittingState:
        """The state that (25) and (26) would have led to from another P_H(z). Source: splitting paper, B.8."""
        _, _, beta, gamma = self.relaxation.at(jnp.maximum(state.t - 1, 0))
        shift = tree.sub(mean, state.mean)
        u = jax.vmap(lambda u_k: tree.axpy(beta * gamma, shift, u_k))(state.u)
        return state._replace(u=u, mean=mean)


class DecentralisedMessage(NamedTuple):
    """The server's state in the decentralised form, which is also the message to every party."""

    mean: Vector  # P_H(z), the shared model
    t: Int[Array, ""]  # number of the next round


class PartyIterates(NamedTuple):
    """A party's state in the decentralised form."""

    u: Vector  # u_k
    z: Vector  # z_k


class DecentralisedSplitting(OnePhaseMethod):
    """The decentralised form: a party holds u_k and z_k; only z_k and the mean of all z are sent.

    Under full participation it equals the centralised form. With absent parties it is another algorithm, because an
    absent party does not update its u_k. Source: the paper, section 4.
    """

    solver: LocalSolver
    relaxation: Relaxation
    local: LocalStep = eqx.field(static=True, default="proximal")
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = True

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> DecentralisedMessage:
        return DecentralisedMessage(w0, jnp.array(0))

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyIterates:
        return PartyIterates(w0, w0)

    @override
    def origin(self, message: DecentralisedMessage) -> Vector:
        return message.mean

    @override
    def party(self, state: PartyIterates, message: DecentralisedMessage, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyIterates, Vector, Info]:
        return self.proximal_step(self.relaxed(state, message), message, oracle, key, effort)

    def relaxed(self, state: PartyIterates, message: DecentralisedMessage) -> Vector:
        """u_k by (25)-(26) of the last round; in round 0, u, z and the mean all are the first model."""
        return self.relaxation.mix(jnp.maximum(message.t - 1, 0), state.u, state.z, message.mean)

    def proximal_step(self, u: Vector, message: DecentralisedMessage, oracle: Oracle, key: Array,
                      effort: Float[Array, ""]) -> tuple[PartyIterates, Vector, Info]:
        """z_k by (24) from u; the reply is z_k."""
        eta, alpha, _, _ = self.relaxation.at(message.t)
        p, info = party_step(self.solver, self.local, u, eta, oracle, key, effort)
        z = tree.lerp(u, p, alpha)
        return PartyIterates(u, z), z, info

    @override
    def server(self, state: DecentralisedMessage, replies: Replies, key: Array) -> tuple[DecentralisedMessage, Info]:
        return DecentralisedMessage(replies.mean(), state.t + 1), {}

    @override
    def personal_model(self, state: PartyIterates, message: DecentralisedMessage, oracle: Oracle) -> Vector:
        return message.mean

    @override
    def server_model(self, state: DecentralisedMessage) -> Vector:
        return state.mean

    @property
    @override
    def iterate(self) -> Iterate:
        def work(u: Vector, state: PartyIterates, message: DecentralisedMessage, oracle: Oracle, key: Array,
                 effort: Float[Array, ""]) -> tuple[PartyIterates, Vector, Info]:
            return self.proximal_step(u, message, oracle, key, effort)

        # The mean follows from the z_k: the server has no part of its own.
        return Iterate(None, is_whole=False, party=PartyPart(self.relaxed, work, lambda state: state))
