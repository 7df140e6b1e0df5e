"""Explicit mixing: any algorithm on f_k(alpha_k w + (1 - alpha_k) x_k), where x_k is the party's own optimum."""

from typing import NamedTuple

import equinox as eqx
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Message, PartyState, Reply
from resolvent.algorithms.combinators.combinator import Combinator, CombinatorState, InnerMessage, InnerParty
from resolvent.algorithms.methods.own_optimum import own_optimum
from resolvent.algorithms.per_party import as_numbers, check_length, of_party
from resolvent.errors import check_range
from resolvent.math.tree import Vector
from resolvent.problem.maps import Mixture, through
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver

__all__ = ["ExplicitMixture", "MixtureMessage", "MixturePartyState"]


class MixturePartyState(NamedTuple):
    """A party's state."""

    optimum: Vector  # x_k
    inner: PartyState


class MixtureMessage(NamedTuple):
    """The message to a party."""

    inner: Message
    alpha: Float[Array, ""]  # alpha_k


class ExplicitMixture(Combinator):
    """The inner algorithm on the parties' mixtures of the shared model and their own optimum.

    .. code-block:: text

        x_k = argmin f_k,   T_k(w) = alpha_k w + (1 - alpha_k) x_k,   min over w of sum_k lambda_k f_k(T_k(w))

    A party computes x_k once, stores it, and uses T_k(w). alpha_k = 1 is the inner algorithm on f_k, alpha_k = 0 is
    x_k. If all alpha_k = beta, the variance of the personal models is (1 - beta)^2 that of the x_k, so it falls as beta
    grows (errata 10). Source: Gasanov, Khaled, Horvath, Richtarik, *FedMix* (FLIX), (FedMix).

    The inner algorithm's first party state is computed on f_k itself, which has the same optimum as the mixture.

    Attributes:
        inner: any algorithm.
        solver: approximates each party's own optimum, once.
        alpha: weight of the shared model, in [0, 1]; one number, or [N], of which each party is sent its own.
        repeats: number of consecutive runs of the solver.

    Raises:
        InputError: when the run starts, alpha does not have one number per party.

    Example:
        >>> solver = rv.SGD(0.1)
        >>> algorithm = rv.combinators.ExplicitMixture(rv.fedavg(solver), solver, alpha=0.5)
    """

    solver: LocalSolver
    alpha: ArrayLike = eqx.field(converter=as_numbers, default=0.5)
    repeats: ArrayLike = 1

    def __check_init__(self) -> None:
        check_range(self, "[0, 1]", alpha=self.alpha)
        check_range(self, "[1, inf)", repeats=self.repeats)

    @override
    def check_settings(self, parties: int) -> None:
        check_length("alpha", self.alpha, parties)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> MixturePartyState:
        optimum = own_optimum(self.solver, self.repeats, w0, oracle, key)
        return MixturePartyState(optimum, self.inner.init_party(w0, oracle, key))

    @override
    def message(self, inner: InnerMessage, state: CombinatorState, k: Int[Array, ""], phase: int) -> MixtureMessage:
        return MixtureMessage(inner(state.inner, k), of_party(self.alpha, k))

    @override
    def party(self, inner: InnerParty, state: MixturePartyState, message: MixtureMessage, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[MixturePartyState, Reply, Info]:
        mixture = Mixture(message.alpha, state.optimum)
        after, reply, info = inner(state.inner, message.inner, through(oracle, mixture), key, effort)
        if "model" in info:
            info = info | {"model": mixture(info["model"], oracle.grad)}
        return MixturePartyState(state.optimum, after), reply, info

    @override
    def personal_model(self, state: MixturePartyState, message: MixtureMessage, oracle: Oracle) -> Vector:
        mixture = Mixture(message.alpha, state.optimum)
        model = self.inner.personal_model(state.inner, message.inner, through(oracle, mixture))
        return mixture(model, oracle.grad)
