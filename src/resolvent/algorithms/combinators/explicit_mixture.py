r"""Explicit mixing: any algorithm on f_k(alpha_k w + (1 - alpha_k) x_k), where x_k is the party's own optimum.

.. code-block:: text

    x_k = argmin f_k,  T_k(w) = alpha_k w + (1 - alpha_k) x_k;   min over w of sum_k lambda_k f_k(T_k(w))      (FedMix)

A party finds x_k once, keeps it, and uses T_k(w). alpha_k = 1 is the inner algorithm on f_k, alpha_k = 0 is x_k. The
variance of the deployed models is (1 - beta)^2 that of the x_k where all alpha_k = beta, so it falls as beta grows
(errata 10). Source: Gasanov, Khaled, Horvath, Richtarik, *FedMix* (FLIX), (FedMix).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.algorithms.algorithm import Info, Message, PartyState, Reply, ServerState
from resolvent.algorithms.combinators.combinator import Combinator, InnerMessage, InnerParty
from resolvent.algorithms.per_party import as_numbers, check_length, of_party
from resolvent.errors import check_range
from resolvent.math.tree import Vector
from resolvent.problem.maps import Mixture, through
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["ExplicitMixture", "own_optimum"]

Own = tuple[Vector, PartyState]
Sent = tuple[Message, Float[Array, ""]]


@jax.jit
def own_optimum(solver: LocalSolver, repeats: ArrayLike, w0: Vector, oracle: Oracle, key: Array) -> Vector:
    """x_k = argmin f_k, as well as so many runs of the solver one after the other find it from the first model."""
    def run(i: Array, x: Vector) -> Vector:
        return solver(Subproblem(oracle, x), x, jax.random.fold_in(key, i), jnp.ones((), jnp.zeros(()).dtype))[0]

    best: Vector = jax.lax.fori_loop(0, repeats, run, w0)
    return best


class ExplicitMixture(Combinator):
    """An algorithm on the parties' mixtures of the shared model and their own optimum.

    The inner algorithm's first party state is made on f_k itself, which has the mixture's optimum.

    Attributes:
        inner: any algorithm.
        solver: finds each party's own optimum, once.
        alpha: the share of the shared model, in [0, 1]; one number, or [N], one per party, which is told its own.
        repeats: how many times over the solver is run.

    Raises:
        ValueError: an alpha outside of [0, 1]; when the run starts, another number of them than of parties.
    """

    solver: LocalSolver
    alpha: ArrayLike = eqx.field(converter=as_numbers, default=0.5)
    repeats: ArrayLike = 1

    def __check_init__(self) -> None:
        check_range(self, "[0, 1]", alpha=self.alpha)
        check_range(self, "[1, inf)", repeats=self.repeats)

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> ServerState:
        """As the inner algorithm."""
        check_length("alpha", self.alpha, len(weights))
        return self.inner.init(w0, weights)

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Own:
        """The party's own optimum, and its inner state."""
        own = own_optimum(self.solver, self.repeats, w0, oracle, key)
        return own, self.inner.init_party(w0, oracle, key)

    def message(self, inner: InnerMessage, state: ServerState, k: Int[Array, ""]) -> Sent:
        """The inner message and alpha_k."""
        return inner(state, k), of_party(self.alpha, k)

    def party(self, inner: InnerParty, state: Own, message: Sent, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Own, Reply, Info]:
        """The inner work on f_k(T_k(w))."""
        (own, mine), (sent, alpha) = state, message
        mix = Mixture(alpha, own)
        mine, reply, info = inner(mine, sent, through(oracle, mix), key, effort)
        if "model" in info:
            info = info | {"model": mix(info["model"], oracle.grad)}
        return (own, mine), reply, info

    def personal_model(self, state: Own, message: Sent, oracle: Oracle) -> Vector:
        """T_k of what the inner algorithm deploys."""
        (own, mine), (sent, alpha) = state, message
        mix = Mixture(alpha, own)
        return mix(self.inner.personal_model(mine, sent, through(oracle, mix)), oracle.grad)
