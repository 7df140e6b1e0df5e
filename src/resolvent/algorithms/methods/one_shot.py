r"""One-shot averaging: the parties' own optima, averaged once, near the minimiser of FedMix where the alphas are small.

.. code-block:: text

    x_avg = sum_k w_k x_k,   w_k in proportion to lambda_k alpha_k^2 L_k;   a party uses alpha_k x_avg + (1-alpha_k) x_k

Source: Gasanov, Khaled, Horvath, Richtarik, *FedMix*, (2), with lambda_k = 1/n.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from resolvent.algorithms.algorithm import Info, Method, Phase, Replies
from resolvent.algorithms.combinators.explicit_mixture import own_optimum
from resolvent.algorithms.per_party import as_numbers, check_length, of_party
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.maps import Mixture
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["OneShot", "curvature"]

Own = tuple[Vector, Float[Array, ""], Bool[Array, ""]]
Average = tuple[Vector, Float[Array, ""]]
Sent = tuple[Vector, Float[Array, ""], Float[Array, ""]]


@jax.jit
def curvature(oracle: Oracle, w: Vector, key: Array, *, tolerance: float = 1e-6, cap: int = 1000) -> Float[Array, ""]:
    """The largest absolute eigenvalue of the Hessian at ``w``, by power iteration until it changes no more."""
    def apply(v: Vector) -> Vector:
        image: Vector = jax.jvp(oracle.grad, (w,), (v,))[1]
        return image

    def unit(v: Vector) -> tuple[Vector, Array]:
        size = tree.norm(v)
        return jax.tree.map(lambda leaf: leaf / jnp.where(size > 0, size, 1), v), size

    def body(carry: tuple[Array, Vector, Array, Array]) -> tuple[Array, Vector, Array, Array]:
        i, v, _, last = carry
        v, now = unit(apply(v))
        return i + 1, v, last, now

    def changes(carry: tuple[Array, Vector, Array, Array]) -> Bool[Array, ""]:
        i, _, before, now = carry
        return (i < cap) & ~(jnp.abs(now - before) <= tolerance * now)

    leaves, structure = jax.tree.flatten(w)
    start = jax.tree.unflatten(structure, [jax.random.normal(jax.random.fold_in(key, i), leaf.shape, leaf.dtype)
                                           for i, leaf in enumerate(leaves)])
    first = jnp.array(-1, tree.dtype(w))
    found: Array = jax.lax.while_loop(changes, body, (jnp.array(0), unit(start)[0], first, first * 2))[3]
    return found


class OneShot(Method):
    """Each party sends its weighted optimum once, the first time that it takes part; then x_avg is what it stays.

    Attributes:
        solver: finds each party's own optimum, once.
        alpha: the share of x_avg in what a party uses, in [0, 1]; one number, or [N], one per party.
        smoothness: L_k, one number or [N]; default: each party takes its Hessian's largest eigenvalue at x_k, which is
            L_k for a quadratic.
        repeats: how many times over the solver is run.
    """

    solver: LocalSolver
    alpha: ArrayLike = eqx.field(converter=as_numbers, default=0.5)
    smoothness: ArrayLike | None = eqx.field(converter=lambda v: None if v is None else as_numbers(v), default=None)
    repeats: ArrayLike = 1
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        check_range(self, "[0, 1]", alpha=self.alpha)
        check_range(self, "[1, inf)", repeats=self.repeats)
        if self.smoothness is not None:
            check_range(self, "[0, inf)", smoothness=self.smoothness)

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> Average:
        """x_avg of nobody, and the sum of its weights."""
        check_length("alpha", self.alpha, len(weights))
        if self.smoothness is not None:
            check_length("smoothness", self.smoothness, len(weights))
        return w0, jnp.zeros((), weights.dtype)

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Own:
        """x_k, L_k, and that it has not been sent."""
        own = own_optimum(self.solver, self.repeats, w0, oracle, key)
        known = self.smoothness is not None
        found = jnp.ones((), tree.dtype(own)) if known else curvature(oracle, own, key)
        return own, found, jnp.array(False)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One phase."""
        return (Phase(self._message, self._party, self._server),)

    def _message(self, state: Average, k: Int[Array, ""]) -> Sent:
        return state[0], of_party(self.alpha, k), of_party(1.0 if self.smoothness is None else self.smoothness, k)

    def _party(self, state: Own, message: Sent, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[Own, tuple[Vector, Array], Info]:
        own, found, sent = state
        _, alpha, given = message
        mass = jnp.where(sent, 0, alpha**2 * found * given)
        reply = jax.tree.map(lambda leaf: (mass * leaf).astype(leaf.dtype), own), mass
        zero = jnp.zeros((), tree.dtype(own))
        return (own, found, jnp.array(True)), reply, {"model": own, "steps": zero, "inexactness": zero}

    def _server(self, state: Average, replies: Replies,
                key: Array) -> tuple[Average, Info]:
        average, before = state
        weighted, mass = replies.total(replies.payload)
        after = before + mass
        moved = tree.axpy(-mass, average, weighted)
        return (tree.axpy(1 / jnp.where(after > 0, after, 1), moved, average), after), {}

    def personal_model(self, state: Own, message: Sent, oracle: Oracle) -> Vector:
        """T_k(x_avg)."""
        return Mixture(message[1], state[0])(message[0], oracle.grad)

    def server_model(self, state: Average) -> Vector:
        """x_avg."""
        return state[0]
