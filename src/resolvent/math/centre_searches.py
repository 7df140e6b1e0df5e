r"""Centres computed from sums: iterations that use the points only through weighted sums of bounded replies.

Each step sends one point w to the owners of the points p_k. The owner of p_k replies a vector that it computes from
p_k and w alone, and the next step needs only the weighted mean of these replies. So no single point has to be seen,
and a secure sum suffices. For a penalty with a bounded pull the influence of a point is bounded by its weight in every
step, whatever the point is.

.. math:: w \leftarrow w + \frac{\sum_k \lambda_k\, t^{-1}(r_k - \mathrm{prox}_{t\varphi}(r_k))}
                               {\sum_k \lambda_k\, t^{-1} d_k}, \qquad r_k = p_k - w

with the curvature d_k of the penalty is the step of ``moreau_centre``; for the L2 norm it is Weiszfeld's. Source: Fed+
(25), as an iteration over sums.
"""

from abc import abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree
from typing_extensions import override

from resolvent.math import tree
from resolvent.math.penalties import Penalty
from resolvent.math.tree import Vector

_SMALLEST_DISTANCE = 1e-3  # of the length of the point: shorter distances count as this one

State = TypeVar("State", bound=tuple[Any, ...])


class CentreSearch(eqx.Module, Generic[State]):
    """An iteration for a centre of points that uses only weighted means of replies.

    ``first`` begins at a point; ``point`` is where the owners evaluate next, ``reply`` is what the owner of a point
    replies there, ``step`` takes the weighted mean of the replies, and ``centre`` is the result so far. A reply
    of zeros counts as none.
    """

    @abstractmethod
    def first(self, start: Vector) -> State:
        """The state before the first step."""

    @abstractmethod
    def point(self, state: State) -> Vector:
        """The point at which the owners evaluate, in at least float32."""

    @abstractmethod
    def reply(self, p: Vector, point: Vector) -> PyTree[Any]:
        """What the owner of p replies."""

    @abstractmethod
    def step(self, state: State, mean: PyTree[Any]) -> State:
        """The state after a step, from the weighted mean of the replies."""

    @abstractmethod
    def centre(self, state: State) -> Vector:
        """The centre as far as it is known."""

    @abstractmethod
    def residual(self, state: State) -> Float[Array, ""]:
        """How far the last step was from the optimum: 0 there, and inf before the first step."""


class Pull(NamedTuple):
    """The reply of ``MoreauSearch``.

    Attributes:
        pull: (r - prox(r)) / t, the gradient of the envelope with the opposite sign.
        curvature: d, in [0, 1]; one number for all entries if the penalty has no other.
    """

    pull: Vector
    curvature: PyTree[Any]


class MoreauState(NamedTuple):
    """The state of ``MoreauSearch``.

    Attributes:
        centre: the point after the last step.
        point: where the owners evaluate next, the centre with momentum.
        age: steps since the last restart of the momentum.
        residual: |mean pull| at the last point.
    """

    centre: Vector
    point: Vector
    age: Float[Array, ""]
    residual: Float[Array, ""]


class MoreauSearch(CentreSearch[MoreauState]):
    """The Moreau centre of a penalty by steps of certain descent.

    If the penalty has a curvature for each entry, such as L1, the steps have Nesterov's momentum, which restarts when
    it goes against the pull (O'Donoghue and Candes, *Adaptive Restart for Accelerated Gradient Schemes*): unlike the
    objective, the pull is bounded. With one curvature for all entries plain steps converge faster (Weiszfeld).

    Attributes:
        penalty: phi.
        t: the smoothing, Fed+'s delta; positive.
    """

    penalty: Penalty
    t: ArrayLike

    @override
    def first(self, start: Vector) -> MoreauState:
        wide = tree.widen(start)
        return MoreauState(wide, wide, jnp.zeros((), tree.dtype(wide)), jnp.full((), jnp.inf, tree.dtype(wide)))

    @override
    def point(self, state: MoreauState) -> Vector:
        return state.point

    @override
    def reply(self, p: Vector, point: Vector) -> Pull:
        r = tree.sub(tree.widen(p), point)
        pull = jax.tree.map(lambda a: a / self.t, self.penalty.pull(r, self.t))
        curvature = self.penalty.curvature(r, self.t)
        return Pull(pull, jax.tree.leaves(curvature)[0].ravel()[0] if self.penalty.has_uniform_curvature else curvature)

    @override
    def step(self, state: MoreauState, mean: Pull) -> MoreauState:
        curvature = (jax.tree.map(lambda a: mean.curvature, mean.pull) if self.penalty.has_uniform_curvature
                     else mean.curvature)
        centre = jax.tree.map(lambda a, pull, c: a + jnp.where(c > 0, self.t * pull / jnp.where(c > 0, c, 1), 0),
                              state.point, mean.pull, curvature)
        ahead = tree.sub(centre, state.centre)
        age = jnp.where(tree.full_dot(mean.pull, ahead) < 0, 0, state.age + 1).astype(state.age.dtype)
        momentum = 0.0 if self.penalty.has_uniform_curvature else age / (age + 3)
        return MoreauState(centre, tree.axpy(momentum, ahead, centre), age,
                           tree.norm(mean.pull).astype(state.residual.dtype))

    @override
    def centre(self, state: MoreauState) -> Vector:
        return state.centre

    @override
    def residual(self, state: MoreauState) -> Float[Array, ""]:
        return state.residual


class Vote(NamedTuple):
    """The reply of ``SignSearch``.

    Attributes:
        signs: sign(p - w) of each entry.
        closeness: for each leaf, 1 / (the root mean square of p - w); limited, so that an owner at the point itself
            does not set the scale alone.
    """

    signs: Vector
    closeness: PyTree[Any]


class SignState(NamedTuple):
    """The state of ``SignSearch``.

    Attributes:
        point: where the owners vote next.
        step: length of the next step of each entry; 0 before the first one.
        signs: the direction of the last step of each entry.
        turned: whether an entry has changed its direction: from then on its step is halved.
        residual: the mean over the entries of |mean vote|.
    """

    point: Vector
    step: Vector
    signs: Vector
    turned: Vector
    residual: Float[Array, ""]


class SignSearch(CentreSearch[SignState]):
    """The coordinate-wise median by votes: every owner says for each entry whether its point is above or below.

    A step goes towards the majority. Its length is doubled until the majority changes and halved afterwards, so that
    the error of an entry is halved by every step once the median is enclosed. The first length is half of the weighted
    harmonic mean of the distances of the points, which far points hardly change.
    """

    @override
    def first(self, start: Vector) -> SignState:
        wide = tree.widen(start)
        zero = jax.tree.map(jnp.zeros_like, wide)
        return SignState(wide, zero, zero, jax.tree.map(lambda a: jnp.zeros(a.shape, bool), wide),
                         jnp.full((), jnp.inf, tree.dtype(wide)))

    @override
    def point(self, state: SignState) -> Vector:
        return state.point

    @override
    def reply(self, p: Vector, point: Vector) -> Vote:
        r = tree.sub(tree.widen(p), point)

        def closeness(a: Array, at: Array) -> Array:
            info = jnp.finfo(a.dtype)  # type: ignore[no-untyped-call]
            smallest = jnp.maximum(_SMALLEST_DISTANCE * jnp.sqrt(jnp.mean(at * at)), info.eps)
            # The largest entry is taken out of the root, so that squares do not overflow.
            largest = jnp.maximum(jnp.max(jnp.abs(a), initial=0), smallest)
            return 1 / (largest * jnp.sqrt(jnp.mean((a / largest) ** 2) + info.eps))

        return Vote(jax.tree.map(jnp.sign, r), jax.tree.map(closeness, r, point))

    @override
    def step(self, state: SignState, mean: Vote) -> SignState:
        def of_leaf(w: Array, step: Array, last: Array, turned: Array, vote: Array, closeness: Array) -> Any:
            slack = 8 * jnp.finfo(vote.dtype).eps  # type: ignore[no-untyped-call]
            sign = jnp.where(jnp.abs(vote) <= slack, 0, jnp.sign(vote))  # half of the weight on either side: stay
            first = 0.5 / jnp.where(closeness > 0, closeness, 1)
            turned = turned | (sign * last < 0)
            length = jnp.where(step == 0, first, jnp.where(turned, step / 2, step * 2))
            return w + sign * length, length, sign, turned

        steps = jax.tree.map(of_leaf, state.point, state.step, state.signs, state.turned, mean.signs, mean.closeness)
        point, step, signs, turned = jax.tree.transpose(
            jax.tree.structure(state.point), jax.tree.structure((0, 0, 0, 0)), steps)
        votes = jax.tree.leaves(mean.signs)
        size = max(sum(v.size for v in votes), 1)
        residual = sum((jnp.sum(jnp.abs(v)) for v in votes), start=jnp.zeros(())) / size
        return SignState(point, step, signs, turned, residual.astype(state.residual.dtype))

    @override
    def centre(self, state: SignState) -> Vector:
        return state.point

    @override
    def residual(self, state: SignState) -> Float[Array, ""]:
        return state.residual
