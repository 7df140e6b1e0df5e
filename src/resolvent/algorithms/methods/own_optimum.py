"""The parties' own optima: how a party computes its own, and their mean (one-shot averaging)."""

from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Replies
from resolvent.algorithms.keys import substep_key
from resolvent.algorithms.method import OnePhaseMethod
from resolvent.algorithms.per_party import as_numbers, check_length, of_party
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.maps import Mixture
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem


@jax.jit
def own_optimum(solver: LocalSolver, repeats: ArrayLike, w0: Vector, oracle: Oracle, key: Array) -> Vector:
    """x_k = argmin f_k, approximated by ``repeats`` consecutive runs of the solver from the first model."""
    def run(i: Array, x: Vector) -> Vector:
        w, _, _ = solver(Subproblem(oracle, x), x, substep_key(key, i), jnp.ones((), jnp.result_type(float)))
        return w

    optimum: Vector = jax.lax.fori_loop(0, repeats, run, w0)
    return optimum


class _PowerIteration(NamedTuple):
    iteration: Array
    vector: Vector
    last_norm: Array
    norm: Array


@jax.jit
def curvature(oracle: Oracle, w: Vector, key: Array, *, tolerance: float = 1e-6,
              max_iterations: int = 1000) -> Float[Array, ""]:
    """The largest absolute eigenvalue of the Hessian at ``w``, by power iteration to a relative tolerance."""
    def apply_hessian(v: Vector) -> Vector:
        image: Vector = jax.jvp(oracle.grad, (w,), (v,))[1]
        return image

    def normalize(v: Vector) -> tuple[Vector, Array]:
        size = tree.norm(v)
        return jax.tree.map(lambda leaf: (leaf / jnp.where(size > 0, size, 1)).astype(leaf.dtype), v), size

    def iterate(carry: _PowerIteration) -> _PowerIteration:
        vector, norm = normalize(apply_hessian(carry.vector))
        return _PowerIteration(carry.iteration + 1, vector, carry.norm, norm)

    def changes(carry: _PowerIteration) -> Bool[Array, ""]:
        converged = jnp.abs(carry.norm - carry.last_norm) <= tolerance * carry.norm
        return (carry.iteration < max_iterations) & ~converged

    leaves, structure = jax.tree.flatten(w)
    start = jax.tree.unflatten(structure, [jax.random.normal(substep_key(key, i), leaf.shape, leaf.dtype)
                                           for i, leaf in enumerate(leaves)])
    unset = jnp.array(-1, tree.dtype(w))
    first = _PowerIteration(jnp.array(0), normalize(start)[0], unset, unset * 2)
    largest: Array = jax.lax.while_loop(changes, iterate, first).norm
    return largest


class OneShotState(NamedTuple):
    """The server's state."""

    average: Vector  # x_avg over the parties that have replied
    mass: Float[Array, ""]  # the sum of their unnormalised weights


class OneShotPartyState(NamedTuple):
    """A party's state."""

    optimum: Vector  # x_k
    curvature: Float[Array, ""]  # L_k, or 1 if the server sends it
    has_replied: Bool[Array, ""]  # whether x_k has been sent


class OneShotMessage(NamedTuple):
    """The server's message to a party."""

    average: Vector  # x_avg
    alpha: Float[Array, ""]  # alpha_k
    smoothness: Float[Array, ""]  # L_k, or 1 if the party computes it


class WeightedOptimum(NamedTuple):
    """A party's reply; zero after its first one."""

    weighted: Vector  # mass * x_k
    mass: Float[Array, ""]  # alpha_k^2 L_k


class OneShot(OnePhaseMethod):
    """One-shot averaging: the parties' own optima, averaged once; close to FedMix's minimiser if the alphas are small.

    .. code-block:: text

        x_avg = sum_k w_k x_k,   w_k in proportion to lambda_k alpha_k^2 L_k
        a party uses alpha_k x_avg + (1 - alpha_k) x_k

    Each party sends its weighted optimum the first time that it takes part; after that x_avg stays as it is. Without a
    ``smoothness``, L_k is the largest eigenvalue of the party's Hessian at x_k.
    """

    solver: LocalSolver
    alpha: Annotated[ArrayLike, "[0, 1]"] = eqx.field(converter=as_numbers, default=0.5)
    smoothness: Annotated[ArrayLike | None, "[0, inf)"] = eqx.field(
        converter=lambda v: None if v is None else as_numbers(v), default=None)
    repeats: Annotated[ArrayLike, "[1, inf)"] = 1
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    @override
    def check(self, parties: int) -> None:
        check_length("alpha", self.alpha, parties)
        if self.smoothness is not None:
            check_length("smoothness", self.smoothness, parties)

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> OneShotState:
        return OneShotState(w0, jnp.zeros((), shares.dtype))

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> OneShotPartyState:
        optimum = own_optimum(self.solver, self.repeats, w0, oracle, key)
        is_set = self.smoothness is not None
        smoothness = jnp.ones((), tree.dtype(optimum)) if is_set else curvature(oracle, optimum, key)
        return OneShotPartyState(optimum, smoothness, jnp.array(False))

    @override
    def message(self, state: OneShotState, k: Int[Array, ""]) -> OneShotMessage:
        smoothness = 1.0 if self.smoothness is None else self.smoothness
        return OneShotMessage(state.average, of_party(self.alpha, k), of_party(smoothness, k))

    @override
    def party(self, state: OneShotPartyState, message: OneShotMessage, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[OneShotPartyState, WeightedOptimum, Info]:
        x = state.optimum
        mass = jnp.where(state.has_replied, 0, message.alpha**2 * state.curvature * message.smoothness)
        weighted = tree.scale(mass, x)
        zero = jnp.zeros((), tree.dtype(x))
        return (state._replace(has_replied=jnp.array(True)), WeightedOptimum(weighted, mass),
                {"model": x, "steps": zero, "inexactness": zero})

    @override
    def server(self, state: OneShotState, replies: Replies, key: Array) -> tuple[OneShotState, Info]:
        weighted, added = replies.total(replies.payload)
        mass = state.mass + added
        move = tree.axpy(-added, state.average, weighted)
        return OneShotState(tree.axpy(1 / jnp.where(mass > 0, mass, 1), move, state.average), mass), {}

    @override
    def personal_model(self, state: OneShotPartyState, message: OneShotMessage, oracle: Oracle) -> Vector:
        return Mixture(message.alpha, state.optimum)(message.average, oracle.grad)

    @override
    def server_model(self, state: OneShotState) -> Vector:
        return state.average
