"""Newton's method with a line search, one evaluation at a time: whoever evaluates can be one party or a sum over all.

The objective is h(w) = f(w) + sum_j l1_j |w_j|, where f is smooth. With ``l1`` it is the proximal Newton method of
Lee, Sun, Saunders, *Proximal Newton-type methods for minimizing composite functions*, 2014.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from resolvent.math import tree

_ARMIJO = 1e-4  # the part of the predicted decrease that a step must reach
_ROUNDING = 64  # a step may raise the objective by this multiple of its rounding error
_SINGULAR = 4  # eigenvalues of the scaled Hessian below this many rounding errors of the largest count as zero
_SWEEPS = 1000  # of coordinate descent


class SecondOrder(NamedTuple):
    """An objective up to its second derivatives at a point of P numbers.

    Attributes:
        gradient: [P].
        hessian: [P, P].
    """

    value: Float[Array, ""]
    gradient: Float[Array, " P"]
    hessian: Float[Array, "P P"]


class NewtonState(NamedTuple):
    """The state between two evaluations.

    Attributes:
        point: [P] the last accepted point.
        value: h there; infinite before the first evaluation.
        size: the largest absolute value of h at an accepted point.
        direction: [P] Newton's direction there.
        slope: the decrease of h that the quadratic model predicts to first order along the direction, negative.
        step: length of the step whose end is evaluated next.
        evaluations: number of evaluations before convergence.
        has_converged: whether the predicted decrease is below the tolerance.
    """

    point: Float[Array, " P"]
    value: Float[Array, ""]
    size: Float[Array, ""]
    direction: Float[Array, " P"]
    slope: Float[Array, ""]
    step: Float[Array, ""]
    evaluations: Int[Array, ""]
    has_converged: Bool[Array, ""]

    @property
    def candidate(self) -> Float[Array, " P"]:
        """The point to evaluate next; the accepted point after convergence."""
        return self.point + jnp.where(self.has_converged, 0, self.step) * self.direction


def start(w: Float[Array, " P"]) -> NewtonState:
    """The state whose first evaluation is at ``w``."""
    zero = jnp.zeros((), w.dtype)
    return NewtonState(w, zero + jnp.inf, zero, jnp.zeros_like(w), zero, zero + 1, jnp.array(0), jnp.array(False))


def advance(state: NewtonState, evaluation: SecondOrder, tolerance: ArrayLike,
            l1: Float[Array, " P"] | None = None) -> NewtonState:
    """The state after an evaluation of f at ``state.candidate``.

    A step is accepted if h falls by a part of the predicted decrease (Armijo); otherwise it is halved. At a point that
    is not finite, the step is halved as well. Once the predicted decrease is below the tolerance, the last whole step
    is taken without an evaluation: near a minimum its error is the square of what is left.

    Args:
        tolerance: the predicted decrease of h at which it has converged, relative to the largest |h| at an accepted
            point. Both change with the units of the labels, and so does the rounding error.
        l1: [P] weights of the absolute values; None: zero.
    """
    candidate = state.candidate
    value = evaluation.value if l1 is None else evaluation.value + jnp.sum(l1 * jnp.abs(candidate))
    rounding = _ROUNDING * precision(value) * jnp.abs(value)
    is_first = jnp.isinf(state.value)
    limit = jnp.where(is_first, jnp.inf, state.value + _ARMIJO * state.step * state.slope + rounding)
    is_finite = jnp.isfinite(value) & tree.finite(evaluation)
    is_accepted = is_finite & ((value <= limit) | is_first) & ~state.has_converged
    direction, slope = newton_direction(_without_nan(evaluation), candidate, l1)
    size = jnp.maximum(state.size, jnp.abs(value))
    has_converged = -slope <= tolerance * size
    accepted = NewtonState(candidate + jnp.where(has_converged, direction, 0), value, size, direction, slope,
                           jnp.ones_like(state.step), state.evaluations + 1, has_converged)
    refused = state._replace(step=state.step / 2, evaluations=state.evaluations + 1)
    after = jax.tree.map(lambda a, b: jnp.where(is_accepted, a, b), accepted, refused)
    result: NewtonState = jax.tree.map(lambda a, b: jnp.where(state.has_converged, a, b), state, after)
    return result


def precision(x: Array) -> float:
    """The distance from 1 to the next number of the dtype."""
    return float(np.finfo(x.dtype).eps)


def newton_direction(evaluation: SecondOrder, w: Float[Array, " P"],
                     l1: Float[Array, " P"] | None) -> tuple[Float[Array, " P"], Float[Array, ""]]:
    """The minimiser d of g'd + d'Hd/2 + sum_j l1_j |w_j + d_j|, and its predicted change of h, which is not positive.

    Without l1, H is scaled to a unit diagonal, negative eigenvalues are reversed, and directions in which H is zero are
    left out, so that d is a direction of descent and has the smallest norm if there are several.
    """
    if l1 is not None:
        d = _coordinate_descent(evaluation, w, l1)
        return d, jnp.minimum(evaluation.gradient @ d + jnp.sum(l1 * (jnp.abs(w + d) - jnp.abs(w))), 0)
    diagonal = jnp.diag(evaluation.hessian)
    scale = jnp.where(diagonal > 0, jax.lax.rsqrt(jnp.where(diagonal > 0, diagonal, 1)), 1)
    values, vectors = jnp.linalg.eigh(evaluation.hessian * scale[:, None] * scale[None, :])
    size = jnp.abs(values)
    is_regular = size > _SINGULAR * precision(size) * jnp.max(size)
    along = vectors.T @ (scale * evaluation.gradient) * jnp.where(is_regular, 1 / jnp.where(is_regular, size, 1), 0)
    d = -scale * (vectors @ along)
    return d, evaluation.gradient @ d


def _coordinate_descent(evaluation: SecondOrder, w: Float[Array, " P"], l1: Float[Array, " P"]) -> Float[Array, " P"]:
    """Coordinate by coordinate, until no coordinate changes. Source: Friedman, Hastie, Tibshirani, 2010."""
    hessian, diagonal = evaluation.hessian, jnp.diag(evaluation.hessian)
    curvature = jnp.where(diagonal > 0, diagonal, 1)
    precise = 4 * precision(w)

    def sweep(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        before, _, slope, count = carry  # d, its last change, g + H d

        def update(j: Array, parts: tuple[Array, Array]) -> tuple[Array, Array]:
            d, slope = parts
            target = w[j] + d[j] - slope[j] / curvature[j]
            new = jnp.sign(target) * jnp.maximum(jnp.abs(target) - l1[j] / curvature[j], 0) - w[j]
            change = jnp.where(diagonal[j] > 0, new - d[j], 0)
            return d.at[j].add(change), slope + change * hessian[:, j]

        d, slope = jax.lax.fori_loop(0, w.size, update, (before, slope))
        return d, jnp.max(jnp.sqrt(curvature) * jnp.abs(d - before)), slope, count + 1

    size = jnp.max(jnp.abs(evaluation.gradient) / jnp.sqrt(curvature))
    first = (jnp.zeros_like(w), jnp.full((), jnp.inf, w.dtype), evaluation.gradient, jnp.array(0))
    last = jax.lax.while_loop(lambda c: (c[1] > precise * size) & (c[3] < _SWEEPS), sweep, first)
    return last[0]


def _without_nan(evaluation: SecondOrder) -> SecondOrder:
    """Zeros instead of numbers that are not finite, because eigenvalues of those need not end."""
    finite: SecondOrder = jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, 0), evaluation)
    return finite
