"""The exact ridge path of a linear model, in place of local training."""

from typing import Annotated, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, Info, Reply
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty, Wrapped, contains, innermost
from resolvent.algorithms.description import describe
from resolvent.algorithms.methods.local import LocalTraining
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.model import Model
from resolvent.problem.oracle import Oracle
from resolvent.problem.ridge_path import Folds, fit_ridge_path, has_ridge_path
from resolvent.problem.sample_oracle import SampleOracle
from resolvent.xla.shapes import shapes_of

STRENGTHS = tuple(10 ** (exponent / 2) for exponent in range(8, -5, -1))  # 10,000 to 0.01


class RidgePathState(NamedTuple):
    """The combinator's part of a party's state."""

    model: Vector
    is_fitted: Bool[Array, ""]


class RidgePath(Combinator):
    """A party whose model is linear solves its ridge path, once; for other models it is the inner algorithm.

    The strength is chosen by cross-validation on the party's own training rows, see ``resolvent.problem.ridge_path``.
    The party does it in the first round in which it takes part. Its folds are drawn from the key of this round.

    Attributes:
        inner: local training, or a choice between several.
        strengths: weights r of |W|^2 / 2, added to the sum of the losses; infinity is tried, too.
        folds: number of folds.

    Raises:
        InputError: the inner algorithm is not local training, or there are fewer than two folds.
    """

    strengths: Annotated[tuple[float, ...], "(0, inf)"] = STRENGTHS
    folds: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        if not isinstance(core := innermost(self.inner), LocalTraining):
            raise InputError(f"RidgePath is for a party that trains alone, got {type(core).__name__}: use rv.local")
        if self.folds < 2:
            raise InputError(f"folds={self.folds}: cross-validation needs at least 2 folds")

    @property
    @override
    def works_without_held_out(self) -> bool:
        return True

    @override
    def init_party_extra(self, w0: Vector, oracle: Oracle, key: Array) -> RidgePathState:
        return RidgePathState(w0, jnp.array(False))

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Reply, Info]:
        if not _is_linear(oracle):
            return super().party(inner, state, message, oracle, key, effort, phase)
        before: RidgePathState = state.extra
        is_needed = ~before.is_fitted & (effort > 0)
        folds = Folds(self.folds, jax.random.bits(key, (), jnp.uint32))
        strengths = jnp.sort(jnp.asarray(self.strengths))[::-1]
        fit = fit_ridge_path(oracle, before.model, folds, strengths, is_needed)
        model = tree.where(is_needed, fit.model, before.model)
        info = {"model": model, "steps": is_needed.astype(tree.dtype(model))}
        return Wrapped(state.inner, RidgePathState(model, before.is_fitted | is_needed)), (), info

    @override
    def personal_model(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> Vector:
        own: Vector = state.extra.model
        return own if _is_linear(oracle) else super().personal_model(state, message, oracle)


def uses_held_out(algorithm: Algorithm, model: Model) -> bool:
    """Whether a party chooses by its held-out samples; a ridge path is chosen by folds of the training samples."""
    if contains(algorithm, RidgePath) and has_ridge_path(model):
        return False
    return describe(algorithm, shapes_of(model.init, jax.random.key(0))).uses_held_out


def _is_linear(oracle: Oracle) -> bool:
    return isinstance(oracle, SampleOracle) and oracle.objective is None and has_ridge_path(oracle.model)
