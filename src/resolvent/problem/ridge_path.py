r"""The ridge path of a linear model on one party's rows: its strength by cross-validation, solved to convergence.

.. code-block:: text

    U(r) = argmin over U = [W b] of  sum_i loss_i(W x_i + b) + r/2 |W|^2        for each strength r of the path
    r*   = argmin over r of  sum over the folds j, and over the rows i of fold j, of  loss_i at U_j(r)

where U_j(r) is fitted without fold j. The result is U(r*). The intercept b is not shrunk. The path begins with the
infinite strength, at which W = 0, so that the model is worse than the most frequent class, or the mean, by noise only.
It ends after two strengths that are worse than the best one before them. r is the ``alpha`` of scikit-learn's
``Ridge``, and 1/``C`` of its ``LogisticRegression``.

**Solution.** With G = c sum_i [x_i 1]'[x_i 1] + r diag(1, ..., 1, 0), where c bounds the second derivatives of the loss
(1 for squared errors, 1/4 for a logit, 1/2 for a softmax), the objective lies below its tangent at Y plus
|U - Y|_G^2/2. The minimiser of this bound, U = Y - G^-1 grad(Y), is a step of Nesterov's accelerated method, whose
momentum begins anew where it points uphill. Least squares needs one step. All folds make their steps together, roughly,
and a strength starts from the solution of the one before it; the chosen one is then solved precisely.

**Unseen classes.** The intercept of a class without a row would be minus infinity. It gets the largest one with which
the class has at no input a probability above half a row, p/(1 - p) <= 1/(2n): with C seen classes, whose logits sum to
zero, log sum_c exp(logit_c) is at least log C, and constant if W = 0. So an unseen class is never predicted.

Source: Friedman, Hastie, Tibshirani, *Regularization Paths for Generalized Linear Models via Coordinate Descent*, 2010;
Böhning, *Multinomial Logistic Regression Algorithm*, 1992, the bounds; O'Donoghue, Candès, *Adaptive Restart for
Accelerated Gradient Schemes*, 2015.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Bool, Float, Int, UInt32

from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError, WeightedLoss
from resolvent.problem.models.model import LinearModel, Model
from resolvent.problem.objective import Batch, Context
from resolvent.problem.oracle import Oracle
from resolvent.xla import loops
from resolvent.xla.shuffle import mix_bits

_BOUNDS = {SquaredError: 1.0, BinaryCrossEntropy: 0.25, CrossEntropy: 0.5}  # of the second derivatives
_MAX_STEPS = 500
_PATIENCE, _LEVEL = 2, 1e-3  # strengths that may be worse than the best, by more than this share of its loss
_ROUGH, _PRECISION = 3e-4, 0.5  # last step relative to that from zero: on the path; as a power of the rounding unit
_FAR = 1e9  # below all logits


class Folds(NamedTuple):
    """Folds of a party's rows: of each ``number`` consecutive rows one is in each fold, in a random rotation."""

    number: int
    salt: UInt32[Array, ""]

    def of(self, positions: Int[Array, " B"]) -> Int[Array, " B"]:
        """The fold of each of these rows, which are numbered from 0."""
        rotation = mix_bits((positions // self.number).astype(jnp.uint32) ^ self.salt) >> 1
        return (positions + rotation.astype(positions.dtype)) % self.number


class RidgeFit(NamedTuple):
    """A model of the path.

    Attributes:
        model: {"weight": [C, p], "bias": [C]}.
        strength: r; infinite if the weights are zero.
    """

    model: Vector
    strength: Float[Array, ""]


def has_ridge_path(model: Model) -> bool:
    """Whether it is a linear model with a loss whose second derivatives are bounded."""
    return isinstance(model, LinearModel) and type(_plain(model.loss)) in _BOUNDS


class _Path(NamedTuple):
    """The state after a part of the path; J folds."""

    number: Int[Array, ""]  # of the next strength
    fits: Float[Array, "J+1 C p+1"]  # without each fold, and of all rows
    best: Float[Array, "C p+1"]
    strength: Float[Array, ""]
    held_out: Float[Array, ""]  # sum of the held-out losses of the best
    worse: Int[Array, ""]  # number of strengths since the best
    is_solved: Bool[Array, ""]


class _Steps(NamedTuple):
    """The state of the accelerated steps."""

    point: Float[Array, "J+1 C p+1"]
    ahead: Float[Array, "J+1 C p+1"]  # where the next gradient is computed
    momentum: Float[Array, " J+1"]  # Nesterov's t
    length: Float[Array, " J+1"]  # |step|_G
    steps: Int[Array, ""]


def fit_ridge_path(oracle: Oracle, w0: Vector, folds: Folds, strengths: Float[Array, " S"],
                   is_needed: Bool[Array, ""] | None = None) -> RidgeFit:
    """The model with the best strength of the path.

    Args:
        oracle: samples of a model with ``has_ridge_path``, of a party or of all.
        w0: a model, for its shapes and dtypes.
        strengths: from the strongest to the weakest; infinity is tried before them.
        is_needed: false to do nothing; the result is a model of zeros then.
    """
    rows = _Rows(oracle, w0, folds)
    first = jnp.zeros((folds.number + 1, *rows.shape), rows.dtype)
    is_whole = jnp.arange(folds.number + 1) == folds.number
    largest = jnp.max(_length(*rows.steps(jnp.zeros((), rows.dtype))(first)))
    path = jnp.concatenate([jnp.full(1, jnp.inf), strengths]).astype(rows.dtype)

    tight = largest * float(np.finfo(rows.dtype).eps) ** _PRECISION

    def has_work(state: _Path) -> Bool[Array, ""]:
        return ~state.is_solved & (True if is_needed is None else is_needed)

    def advance(state: _Path) -> _Path:
        """The next strength, roughly; at the end the best one, precisely."""
        is_last = (state.number == len(path)) | (state.worse == _PATIENCE)
        strength = jnp.where(is_last, state.strength, path[jnp.minimum(state.number, len(path) - 1)])
        start = jnp.where(is_last, state.best, state.fits)
        fits = rows.solve(start, strength, jnp.where(is_last & is_whole, tight, _ROUGH * largest))
        loss = rows.held_out(fits)
        is_better = is_last | (loss < state.held_out)
        return _Path(state.number + 1, fits, jnp.where(is_better, fits[-1], state.best),
                     jnp.where(is_better, strength, state.strength), jnp.where(is_better, loss, state.held_out),
                     jnp.where(is_better, 0, state.worse + (loss > (1 + _LEVEL) * state.held_out)), is_last)

    infinite = jnp.asarray(jnp.inf, rows.dtype)
    last = loops.while_loop(has_work, advance, _Path(
        jnp.array(0), first, first[0], infinite, infinite, jnp.array(0), jnp.array(False)),
                            work=oracle.samples * len(path))
    solution = jnp.where(jnp.isfinite(last.held_out), rows.with_unseen_classes(last.best), jnp.nan)
    return RidgeFit(tree.cast({"weight": solution[:, :-1], "bias": solution[:, -1]}, w0), last.strength)


class _Rows:
    """A party's rows, with their folds, and what is computed once for all strengths."""

    def __init__(self, oracle: Oracle, w0: Vector, folds: Folds) -> None:
        outputs, features = w0["weight"].shape
        self.shape = (outputs, features + 1)
        self.dtype = jnp.promote_types(tree.dtype(w0), jnp.float32)
        self._oracle, self._folds = oracle, folds
        self._is_weight = jnp.arange(features + 1) < features
        self._bound, self._classes = oracle.total(self._sums, (
            jnp.zeros((features + 1, features + 1), self.dtype),
            jnp.zeros((folds.number + 1, max(outputs, 2)), self.dtype)))

    def solve(self, start: Float[Array, "J+1 C p+1"], strength: Float[Array, ""],
              tolerances: Float[Array, " J+1"]) -> Float[Array, "J+1 C p+1"]:
        """U(r) without each fold, and of all rows; a step of the length of its tolerance is the last one."""
        step_from = self.steps(strength)

        def advance(state: _Steps) -> _Steps:
            gradient, step = step_from(state.ahead)
            point = state.ahead + step
            change = point - state.point
            is_uphill = jnp.sum(gradient * change, axis=(1, 2)) > 0
            before = jnp.where(is_uphill, 1, state.momentum)
            after = (1 + jnp.sqrt(1 + 4 * before**2)) / 2
            weight = jnp.where(is_uphill, 0, (before - 1) / after)
            return _Steps(point, point + weight[:, None, None] * change, after, _length(gradient, step),
                          state.steps + 1)

        def has_work(state: _Steps) -> Bool[Array, ""]:
            return jnp.any(state.length > tolerances) & (state.steps < _MAX_STEPS)

        ones = jnp.ones(len(start), self.dtype)
        first = _Steps(start, start, ones, jnp.inf * ones, jnp.array(0))
        return jax.lax.while_loop(has_work, advance, first).point

    def steps(self, strength: Float[Array, ""]) -> Callable[[Array], tuple[Array, Array]]:
        """The function from solutions [J+1, C, p+1] to their gradients, and to the steps -G^-1 gradient."""
        is_free = jnp.isfinite(strength) | ~self._is_weight
        ridge = jnp.where(self._is_weight & is_free, strength, 0)
        # G may be singular, and a larger G bounds the objective, too.
        jitter = len(is_free) * float(np.finfo(self.dtype).eps) * jnp.maximum(jnp.max(jnp.diag(self._bound)), 1)
        factor = cho_factor(jnp.where(is_free[:, None] & is_free, self._bound, 0)
                            + jnp.diag(ridge + jnp.where(is_free, jitter, 1)))
        # A product for each step: XLA's triangular solves take ten times as long as the gradient.
        inverse = cho_solve(factor, jnp.eye(len(is_free), dtype=self.dtype))

        def step_from(solutions: Array) -> tuple[Array, Array]:
            of_losses: Array = self._oracle.total(
                lambda batch, model: jax.grad(lambda u: jnp.sum(self._losses(u, batch, model)))(solutions),
                jnp.zeros_like(solutions))
            gradient = (of_losses + ridge * solutions) * is_free
            return gradient, -gradient @ inverse

        return step_from

    def held_out(self, solutions: Float[Array, "J+1 C p+1"]) -> Float[Array, ""]:
        """The sum over the folds of the losses of their rows at the solution without them."""
        total: Array = self._oracle.total(
            lambda batch, model: jnp.sum(self._losses(solutions, batch, model, is_held_out=True)),
            jnp.zeros((), self.dtype))
        return total

    def with_unseen_classes(self, solution: Float[Array, "C p+1"]) -> Float[Array, "C p+1"]:
        """The solution in which a class without a row has at most the probability of half a row."""
        is_seen, twice = self._classes[-1] > 0, 2.0 * self._oracle.samples
        if len(solution) > 1:
            intercept = solution[:, -1]
            least = jnp.where(jnp.any(solution[:, :-1] != 0), jnp.log(jnp.sum(is_seen)),
                              jax.nn.logsumexp(intercept, where=is_seen))
            is_kept, intercepts = is_seen[:, None], jnp.full(len(solution), least - jnp.log(twice))
        else:
            is_kept, intercepts = jnp.all(is_seen), jnp.where(is_seen[1:], 1, -1) * jnp.log(twice + 1)
        unseen = jnp.zeros_like(solution).at[:, -1].set(intercepts)
        return jnp.where(is_kept, solution, unseen)

    def _sums(self, batch: Batch, model: Model) -> tuple[Array, Array]:
        """The bound of the second derivatives, and the number of rows of each class outside of each fold."""
        inputs, labels = self._inputs(batch), batch.y
        loss, numbers = _plain(model.loss), jnp.arange(max(self.shape[0], 2))
        weights = jnp.where(batch.mask, _BOUNDS[type(loss)], 0) * (
            labels.weight if isinstance(model.loss, WeightedLoss) else 1)
        is_of = jnp.ones((1, len(numbers))) if isinstance(loss, SquaredError) else (
            Context(model, {}).classes(batch)[:, None] == numbers)
        counts = jnp.einsum("jb,bc->jc", (self._is_used(batch)).astype(self.dtype), jnp.broadcast_to(
            is_of, (len(inputs), len(numbers))).astype(self.dtype))
        return (inputs.T @ (weights[:, None] * inputs)).astype(self.dtype), counts

    def _inputs(self, batch: Batch) -> Float[Array, "B p+1"]:
        x = batch.x.reshape(len(batch.mask), -1).astype(self.dtype)
        return jnp.concatenate([x, jnp.ones((len(x), 1), self.dtype)], axis=1)

    def _logits(self, solutions: Float[Array, "J C p+1"], batch: Batch, model: Model) -> Float[Array, "J B C"]:
        """The outputs; far below the others for a class without a row outside of the fold."""
        inputs = self._inputs(batch)
        logits = (inputs @ solutions.reshape(-1, self.shape[1]).T).reshape(len(inputs), -1, self.shape[0])
        logits = jnp.swapaxes(logits, 0, 1)
        if not isinstance(_plain(model.loss), CrossEntropy):
            return logits
        return jnp.where(self._classes[-len(solutions):, None] > 0, logits, -_FAR)

    def _is_used(self, batch: Batch) -> Bool[Array, "J+1 B"]:
        """Which rows each solution is fitted with; the last one is fitted with all."""
        return batch.mask & (self._folds.of(batch.positions) != jnp.arange(self._folds.number + 1)[:, None])

    def _losses(self, solutions: Float[Array, "J+1 C p+1"], batch: Batch, model: Model, *,
                is_held_out: bool = False) -> Float[Array, "J+1 B"]:
        """The losses of the rows with which each solution is fitted, or of the others; zero for the rest."""
        of_logits: Callable[[Array], Array] = jax.vmap(lambda logits: Context(model, {}).losses(logits, batch))
        losses = of_logits(self._logits(solutions, batch, model))
        is_used = self._is_used(batch)
        if is_held_out:  # no strength predicts a class that is only in the fold
            is_used = batch.mask & ~is_used & (losses < _FAR / 2)
        return jnp.where(is_used, losses, 0).astype(self.dtype)


def _length(gradient: Float[Array, "J+1 C p+1"], step: Float[Array, "J+1 C p+1"]) -> Float[Array, " J+1"]:
    """|step|_G."""
    return jnp.sqrt(jnp.maximum(-jnp.sum(gradient * step, axis=(1, 2)), 0))


def _plain(loss: Loss) -> Loss:
    """The loss without the weights of samples."""
    return loss.inner if isinstance(loss, WeightedLoss) else loss
