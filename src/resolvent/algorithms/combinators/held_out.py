"""What a party chooses on its held-out samples: one of several settings, or a mixture of own and joint model."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, Info, PartyState, Reply
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty, Wrapped
from resolvent.algorithms.keys import substep_key
from resolvent.algorithms.method import info_of_all, local_solvers, local_work
from resolvent.algorithms.round import Private
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.stateful import params_of
from resolvent.problem.oracle import Oracle, PartyMemory, remembering
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

Measure: TypeAlias = Literal["loss", "score"]


def best_held_out(oracle: Oracle, model: Callable[[PyTree[Array]], Vector], candidates: PyTree[Array],
                  by: Measure) -> Int[Array, ""]:
    """The number of the best of several models on held-out samples.

    By ``score`` the best is the one of the lowest loss among those of the highest score. Among equals it is the first.
    A measure that is not a number is the worst; so without held-out samples the first model is the best. The candidates
    have leaves [J, ...], and ``model`` maps one of them to its model.
    """
    loss, score = jax.lax.map(lambda candidate: oracle.held_out(model(candidate)), candidates)
    gain = jnp.where(jnp.isnan(loss), -jnp.inf, -loss)
    if by == "score":
        score = jnp.where(jnp.isnan(score) | jnp.isnan(loss), -jnp.inf, score)
        gain = jnp.where(score == jnp.max(score), gain, -jnp.inf)
    return jnp.argmax(gain)


_LOCAL = "local"  # name of the work on the local model
_OWN_WORK = 302  # number of the work on the local model, different from those of inner algorithms


class HeldOutInterpolation(Combinator):
    """Each party chooses between local training, the joint model and mixtures of them on its held-out data.

    A party also trains a local model v_k, exactly as ``local`` does, and never sends it. A solver that adds noise draws
    it anew for v_k. With J_k the inner algorithm's personal model, its personal model is

    .. code-block:: text

        M_k(s*),   M_k(s) = (1 - s) v_k + s J_k,   s* = argmin over s in {0, 1/(points-1), ..., 1} of L_k(M_k(s))

    where L_k is its held-out loss (or minus the score), and s* the smallest of several minimisers, or with
    ``fallback="joint"`` the largest. Since s = 0 is among
    the choices, L_k(M_k(s*)) <= L_k(v_k): no party is worse off on its held-out data than with local training, whatever
    the others do. Communication is the inner algorithm's; only the party knows its choice.

    Source: the guarantee is the participation constraint of incentive theory; choosing the mixture on held-out data is
    model interpolation in Mansour, Mohri, Ro, Suresh, *Three Approaches for Personalization*, here with whole
    histories.

    A party without held-out samples uses its local model, or with ``fallback="joint"`` the joint one. The local model
    is trained in the rounds in which the party takes part; if partial work is dropped, so is that of this model.

    Attributes:
        inner: any algorithm; its models must have the shape of the first model.
        solver: local solver of the local model.
        points: number of mixtures, including both ends, at least 2; with 2 a party chooses between the two models.
        by: the measure that is compared: held-out ``loss`` or ``score``.
        fallback: the model of a party without held-out samples, and among equals: ``local`` or ``joint``.

    Example:
        >>> algorithm = rv.combinators.HeldOutInterpolation(rv.fedavg(rv.SGD(0.1)), rv.SGD(0.1), points=5)
    """

    solver: LocalSolver
    points: int = eqx.field(static=True, default=11)
    by: Measure = eqx.field(static=True, default="loss")
    fallback: Literal["local", "joint"] = eqx.field(static=True, default="local")

    def __check_init__(self) -> None:
        if self.points < 2:
            raise InputError(f"HeldOutInterpolation(points={self.points}) must be at least 2: the local and the joint "
                             "model")

    @property
    @override
    def works_without_held_out(self) -> bool:
        return self.fallback == "joint"

    @override
    def init_party_extra(self, w0: Vector, oracle: Oracle, key: Array) -> Private:
        """v_k, which keeps its progress if the inner reply is refused."""
        return Private(w0)

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Reply, Info]:
        local, own = state.extra, Info()
        if phase == 0:
            # Without noise both works draw the same minibatches, so that v_k is exactly the model of ``local``. With
            # the same noise in both, their difference would have none.
            own_key = substep_key(key, _OWN_WORK) if self.solver.adds_noise else key
            v, own = local_work(self.solver, Subproblem(oracle, local.value), local.value, own_key, effort,
                                name=_LOCAL)
            local = Private(v)
        after, reply, info = inner(state.inner, message.inner, oracle, key, effort)
        return Wrapped(after, local), reply, info_of_all(own, info)

    @override
    def personal_model(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> Vector:
        local, joint = self._models(state, message, oracle)
        return _interpolated(local, joint, self._best_weight(local, joint, oracle))

    def joint_weight(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> Float[Array, ""]:
        """s*, the weight of the joint model: 0 is local training, 1 the inner algorithm's model."""
        return self._best_weight(*self._models(state, message, oracle), oracle)

    def _models(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> tuple[Vector, Vector]:
        """v_k and J_k, each with the state that its own work has left, if the model has a state."""
        joint = super().personal_model(state, message, oracle)
        return oracle.model_after(state.extra.value, _LOCAL), oracle.model_after(joint)

    def _best_weight(self, local: Vector, joint: Vector, oracle: Oracle) -> Float[Array, ""]:
        ends = (0, 1) if self.fallback == "local" else (1, 0)  # the first of equals is the best
        weights = jnp.linspace(*ends, self.points, dtype=tree.dtype(params_of(local)))
        best: Array = weights[best_held_out(oracle, partial(_interpolated, local, joint), weights, self.by)]
        return best


def _interpolated(local: Vector, joint: Vector, weight: Float[Array, ""]) -> Vector:
    """The mixture, and at either end the model itself: 0 times a model that diverged is not 0."""
    def of_leaf(a: Array, b: Array) -> Array:
        mixture = jnp.add((1 - weight) * a, weight * b)
        if not jnp.issubdtype(a.dtype, jnp.inexact):  # such as the number of steps of BatchNorm
            mixture = jnp.round(mixture)
        return jnp.where(weight == 0, a, jnp.where(weight == 1, b, mixture.astype(a.dtype))).astype(a.dtype)
    return jax.tree.map(of_leaf, local, joint)


_CANDIDATES = 1000  # number of the first candidate's work, different from those of inner algorithms


_OTHERS = "other candidates: "  # before the name of a work, for the memories [J - 1, ...] of all but the first


class _Candidate(NamedTuple):
    """One candidate, or all of them with leaves [J, ...]."""

    algorithm: Algorithm  # the algorithm with the candidate's numbers
    state: PartyState  # the party's state for it
    memory: dict[str, PartyMemory]  # of its local work


class HeldOutSelection(Combinator):
    """Several settings of one algorithm run in parallel; each party uses the best one on its held-out data.

    A party stores one state per candidate and works for all candidates in every round, from the same message and on the
    same minibatches; a solver that adds noise draws anew for each candidate. The federation runs for the first
    candidate alone: only its replies are sent. The personal model is that of the candidate that is best on the party's
    held-out samples:

    .. code-block:: text

        party k:         (s_kj, r_kj) = candidate j's party step from s_kj and the message, for all j;   it replies r_k1
        server:          that of candidate 1
        personal model:  the best of the candidates' models on held-out samples: by score, then by loss

    So a grid is searched inside one run: the number of rounds, the scarce resource of a federation, is not multiplied;
    local work is. A party's candidates are compared over whole histories, but around the centre of the first one. The
    first candidate should therefore be the one that ties the parties most closely: a centre of models that drifted
    apart is of little use to the other candidates, while a centre of models that stayed together serves them too.

    A party without held-out samples uses the first candidate's model.

    Attributes:
        inner: the first candidate, for which the federation runs.
        others: the same algorithm with other numbers; they receive the first candidate's messages.
        by: the measure that is compared on held-out samples: ``score`` or ``loss``.

    Raises:
        InputError: the candidates are not one algorithm with different numbers.

    Example:
        >>> first, *others = [rv.fedplus(rv.SGD(0.1), rv.penalties.L2Norm(), sigma=sigma) for sigma in (0.1, 1.0)]
        >>> algorithm = rv.combinators.HeldOutSelection(first, tuple(others))
    """

    others: tuple[Algorithm, ...]
    by: Measure = eqx.field(static=True, default="score")
    works_without_held_out: ClassVar[bool] = False

    def __check_init__(self) -> None:
        structure: Any = jax.tree.structure(self.inner)
        if any(structure != jax.tree.structure(other) for other in self.others):
            raise InputError("HeldOutSelection needs candidates that are one algorithm with different numbers, got "
                             f"{', '.join(type(a).__name__ for a in (self.inner, *self.others))}: build all by one "
                             "preset, with different numbers only")

    @property
    def _algorithms(self) -> Algorithm:
        """All candidates' algorithms as one, with leaves [J, ...]."""
        stacked: Algorithm = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), self.inner,
                                          *self.others)
        return stacked

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Wrapped:
        """All candidates' states, leaves [J, ...]."""
        def of_candidate(numbered: tuple[Array, Algorithm]) -> PartyState:
            return numbered[1].init_party(w0, oracle, key)

        # With the numbers, because the candidates can have no array.
        return Wrapped(jax.lax.map(of_candidate, (jnp.arange(1 + len(self.others)), self._algorithms)), ())

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Reply, Info]:
        # Without noise all candidates draw the same minibatches, so that they differ in their numbers only. With the
        # same noise in two candidates, their difference would have none.
        adds_noise = any(solver.adds_noise for solver in local_solvers(self.inner))

        def work(numbered: tuple[Array, _Candidate]) -> tuple[PartyState, Reply, Info]:
            number, candidate = numbered
            party = candidate.algorithm.phases[phase].party
            own_key = substep_key(key, _CANDIDATES + number) if adds_noise else key
            return party(candidate.state, message.inner, remembering(oracle, candidate.memory), own_key, effort)

        numbers = jnp.arange(1 + len(self.others))
        after, reply, info = jax.lax.map(work, (numbers, self._candidates(state, oracle)))
        others = {_OTHERS + name: jax.tree.map(lambda leaf: leaf[1:], memory)
                  for name, memory in info.get("memory", {}).items()}
        info = tree.rows(info, 0)
        return Wrapped(after, ()), tree.rows(reply, 0), info | {"memory": info.get("memory", {}) | others}

    def _candidates(self, state: Wrapped, oracle: Oracle) -> _Candidate:
        memory = {name: jax.tree.map(lambda row, rows: jnp.concatenate([row[None], rows]), first,
                                     oracle.memory[_OTHERS + name])
                  for name, first in oracle.memory.items() if _OTHERS + name in oracle.memory}
        return _Candidate(self._algorithms, state.inner, memory)

    @override
    def personal_model(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> Vector:
        best = self.best_candidate(state, message, oracle)
        return self._model(message, oracle, tree.rows(self._candidates(state, oracle), best))

    def best_candidate(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> Int[Array, ""]:
        """The number of the candidate that a party uses; 0 is the first."""
        return best_held_out(oracle, partial(self._model, message, oracle), self._candidates(state, oracle), self.by)

    def _model(self, message: Wrapped, oracle: Oracle, candidate: _Candidate) -> Vector:
        oracle = remembering(oracle, candidate.memory)
        return oracle.model_after(candidate.algorithm.personal_model(candidate.state, message.inner, oracle))
