"""Maxima of a likelihood under constraints, and the ends of profile intervals, by sums: all searches in one round."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import PartyState
from resolvent.math import newton
from resolvent.math.newton import NewtonState, SecondOrder
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.regression.newton import INEXACT_POWER, TOLERANCE_POWER, DerivativeSums
from resolvent.regression.objective import inverse_of

_NEAR = 1e-3  # of the rise: how near an end's objective is to its target before the last step
_FAR = 4.0  # of the rise: how far a step may miss the target
_LAST = 1e-12  # of the rise: the decrease along the last whole step, whose error is its square
_LAST_SCORING = 1e-20  # the same where a step leaves a part of it


class Constraints(NamedTuple):
    """Linear equations of P parameters for each of K fits: w = turn @ theta with some numbers of theta fixed.

    Attributes:
        turn: [K, P, P].
        is_free: [K, P] which numbers of theta are free.
        fixed: [K, P] the others; 0 for those that are free.
    """

    turn: Float[ArrayLike, "K P P"]
    is_free: Bool[ArrayLike, "K P"]
    fixed: Float[ArrayLike, "K P"]


class EndState(NamedTuple):
    """The searches of E ends of intervals.

    Attributes:
        point: [E, P] the last accepted points.
        distance: [E] how far the objective there is from the target; infinite before the first evaluation.
        direction: [E, P] the steps from there.
        step: [E] lengths of the steps whose ends are evaluated next.
        has_converged: [E].
    """

    point: Float[Array, "E P"]
    distance: Float[Array, " E"]
    direction: Float[Array, "E P"]
    step: Float[Array, " E"]
    has_converged: Bool[Array, " E"]

    @property
    def candidate(self) -> Float[Array, "E P"]:
        """The points to evaluate next."""
        return self.point + jnp.where(self.has_converged, 0, self.step)[:, None] * self.direction


class ConstrainedState(NamedTuple):
    """The server's state.

    Attributes:
        estimates: [P] the maximum without constraints.
        value: the objective there.
        fits: of the constrained fits, with leaves [K, ...], in their coordinates.
        ends: of the intervals.
        evaluation: means at the candidates, between the two phases of a fit with Firth's penalty; otherwise None.
    """

    estimates: Float[Array, " P"]
    value: Float[Array, ""]
    fits: NewtonState
    ends: EndState
    evaluation: SecondOrder | None = None

    @property
    def has_ended(self) -> Bool[Array, ""]:
        """Whether all searches have converged."""
        return jnp.all(self.fits.has_converged) & jnp.all(self.ends.has_converged)

    @property
    def rises(self) -> Float[Array, " K"]:
        """How much the objective rises under each constraint; NaN where the search has not converged.

        The last step is taken without an evaluation: half the predicted slope is its decrease.
        """
        rise = self.fits.value + self.fits.slope / 2 - self.value
        return jnp.where(self.fits.has_converged, jnp.maximum(rise, 0), jnp.nan)


class ConstrainedFits(DerivativeSums):
    r"""Newton's searches from an estimate w, all evaluated in the same rounds.

    A constrained fit minimises f under its equations, in coordinates that fulfil them. An end of the profile interval
    of w_j is the largest or smallest w_j with f <= f(estimate) + rise. With the quadratic model of f at the current
    point, H = f'', V = H^-1 and the smallest value q of the model, its step is

    .. math:: d = -V g \pm \sqrt{2 (f^* - q) / V_{jj}}\; V e_j, \qquad f^* = f(\hat w) + \text{rise}.

    A step that misses f* by far is halved. The first model is the estimate. All parties must take part.

    Source: Venzon, Moolgavkar, *A method for computing profile-likelihood-based confidence intervals*, 1988.

    Attributes:
        constraints: of the K fits.
        positions: the parameters j of the intervals; each has a lower and an upper end.
        rise: of the objective at the ends.
    """

    constraints: Constraints
    positions: tuple[int, ...] = eqx.field(static=True, default=())
    rise: ArrayLike = 0.0
    replies_models: ClassVar[bool] = False
    needs_individual_replies: ClassVar[bool] = False
    norm_multiple: ClassVar[float | None] = None  # the Hessian of one party can be far larger than those of others

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> ConstrainedState:
        count, p = 2 * len(self.positions), w0.size
        starts = jnp.where(jnp.asarray(self.constraints.is_free), w0, jnp.asarray(self.constraints.fixed))
        ends = EndState(jnp.broadcast_to(w0, (count, p)), jnp.full(count, jnp.inf, w0.dtype),
                        jnp.zeros((count, p), w0.dtype), jnp.ones(count, w0.dtype), jnp.zeros(count, bool))
        candidates = 1 + len(starts) + count
        evaluation = None if self.firth is None else SecondOrder(*(
            jnp.zeros((candidates, *shape), w0.dtype) for shape in ((), (p,), (p, p))))
        return ConstrainedState(w0, jnp.zeros((), w0.dtype), jax.vmap(newton.start)(starts), ends, evaluation)

    @override
    def candidates(self, state: ConstrainedState) -> Vector:
        fits = jnp.einsum("kpq,kq->kp", jnp.asarray(self.constraints.turn), jax.vmap(_candidate)(state.fits))
        return jnp.concatenate([state.estimates[None], fits, state.ends.candidate])

    @override
    def after(self, state: ConstrainedState, evaluation: SecondOrder) -> ConstrainedState:
        count = len(jnp.asarray(self.constraints.is_free))
        value = evaluation.value[0]
        of_fits, of_ends = (jax.tree.map(lambda leaf, part=part: leaf[part], evaluation)
                            for part in (slice(1, 1 + count), slice(1 + count, None)))
        tolerance = newton.precision(value)**(TOLERANCE_POWER if self.firth is None else INEXACT_POWER)

        def fit(search: NewtonState, found: SecondOrder, turn: Array, is_free: Array) -> NewtonState:
            gradient, hessian = turn.T @ found.gradient, turn.T @ found.hessian @ turn
            free = SecondOrder(found.value, jnp.where(is_free, gradient, 0),
                               jnp.where(is_free[:, None] & is_free, hessian, 0))
            return newton.advance(search, free, tolerance)

        fits = jax.vmap(fit)(state.fits, of_fits, jnp.asarray(self.constraints.turn),
                             jnp.asarray(self.constraints.is_free)) if count else state.fits
        along = jnp.repeat(jnp.eye(state.estimates.size, dtype=value.dtype)[jnp.array(self.positions, int)], 2, axis=0)
        signs = jnp.tile(jnp.array([-1.0, 1.0], value.dtype), len(self.positions))
        ends = jax.vmap(self._end, (None, 0, 0, 0, 0))(
            value, state.ends, of_ends, along, signs) if len(signs) else state.ends
        return state._replace(value=value, fits=fits, ends=ends)

    def _end(self, value: Array, state: EndState, found: SecondOrder, along: Array, sign: Array) -> EndState:
        """One end's next state."""
        rise = jnp.asarray(self.rise, value.dtype)
        distance = jnp.abs(found.value - value - rise)
        is_first = jnp.isinf(state.distance)
        finite: SecondOrder = jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, 0), found)
        inverse = inverse_of(finite.hessian)
        down, variance = -(inverse @ finite.gradient), along @ inverse @ along
        left = value + rise - (finite.value + finite.gradient @ down / 2)
        length = jnp.sqrt(jnp.maximum(2 * left, 0) / jnp.where(variance > 0, variance, jnp.inf))
        direction = down + sign * length * (inverse @ along)
        is_accepted = jnp.isfinite(found.value) & ((distance <= jnp.maximum(state.distance, _FAR * rise)) | is_first)
        last = _LAST if self.firth is None else _LAST_SCORING
        has_converged = (direction @ finite.hessian @ direction <= last * rise) & (distance <= _NEAR * rise) & ~is_first
        point = state.point + state.step * state.direction
        accepted = EndState(point + jnp.where(has_converged, direction, 0), distance, direction,
                            jnp.ones_like(state.step), has_converged)
        refused = state._replace(step=state.step / 2)
        after = jax.tree.map(lambda a, b: jnp.where(is_accepted, a, b), accepted, refused)
        result: EndState = jax.tree.map(lambda a, b: jnp.where(state.has_converged, a, b), state, after)
        return result

    @override
    def model_message(self, state: ConstrainedState, k: Int[Array, ""]) -> Vector:
        return state.estimates

    @override
    def personal_model(self, state: PartyState, message: Any, oracle: Oracle) -> Vector:
        return message

    @override
    def server_model(self, state: ConstrainedState) -> Vector:
        return state.estimates


def _candidate(search: NewtonState) -> Float[Array, " P"]:
    return search.candidate
