"""The oracle of a model on a party's samples."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.newton import SecondOrder
from resolvent.math.tree import Vector
from resolvent.problem.models.model import Model
from resolvent.problem.models.stateful import BoundModel, ParamsAndState
from resolvent.problem.objective import Batch, BoundObjective, Context, LocalObjective
from resolvent.problem.oracle import Oracle

__all__ = ["SampleOracle"]


class SampleOracle(Oracle):
    """f_k(w) = mean of loss(apply(w, x), y) over the party's samples + l2/2 |w|^2, on packed arrays.

    A linear model may have a ridge of its weights in addition (``Model.shrinkage``).

    Attributes:
        model: the predictor and its loss.
        x: the inputs of all parties, a pytree of arrays [total, ...]; rows offset, ..., offset + samples - 1 belong to
            this party.
        y: the labels, a pytree of arrays [total, ...]; None if there are none.
        offset: the party's first row.
        block: rows per step of a pass over all samples.
        validation: the first row and the number of the party's held-out samples; None if there are none.
        objective: takes the place of the mean loss; None: there is none. l2 is added to it, and ``held_out`` scores
            the loss of the model itself.
    """

    model: Model
    x: PyTree[Array]
    y: PyTree[Array]
    offset: Int[Array, ""]
    block: int = eqx.field(static=True)
    validation: tuple[Int[Array, ""], Int[Array, ""]] | None = None
    objective: BoundObjective | None = None

    @property
    @override
    def has_random_layers(self) -> bool:
        return self.model.has_random_layers

    @override
    def init_memory(self, w: Vector) -> PyTree[Any]:
        """The state of a model that training steps change."""
        return self.model.state if isinstance(self.model, BoundModel) and self.model.has_state else ()

    @property
    @override
    def model_state(self) -> dict[str, Any] | None:
        return self.model.state if isinstance(self.model, BoundModel) else None

    @override
    def with_model_state(self, state: dict[str, Any], *, changes: bool = False) -> "SampleOracle":
        return replace(self, model=self.model.with_state(state, changes=changes))

    @override
    def at_step(self, key: Array) -> "SampleOracle":
        return replace(self, model=self.model.in_training(key))

    @override
    def with_objective(self, objective: LocalObjective, **values: Any) -> "SampleOracle":
        if self.objective is not None:
            raise InputError(f"the local objective {type(objective).__name__} would replace {self.objective.name}: use "
                             "one function that has both terms")
        return replace(self, objective=BoundObjective(objective, values | objective.prepare(self, values)))

    @override
    def total(self, f: Callable[[Batch, Model], PyTree[Any]], zero: PyTree[Any]) -> PyTree[Any]:
        of_batch = self.model.rewritten(lambda batch: f(batch, self.model))
        return self._sum_over_blocks(lambda p, m: of_batch(self._batch(p, m)), zero)

    def sums(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Sum of the losses (without l2) and sum of the scores over all samples."""
        dtype = tree.dtype(w)
        zero, block_sums = jnp.zeros((), dtype), self.model.rewritten(self._block_sums)
        total: tuple[Array, Array] = self._sum_over_blocks(
            lambda p, m: jax.tree.map(lambda s: s.astype(dtype), block_sums(w, p, m)), (zero, zero))
        return total

    @override
    def value(self, w: Vector) -> Float[Array, ""]:
        if isinstance(w, ParamsAndState):
            return self.with_model_state(w.state).value(w.params)
        if (objective := self.objective) is None:
            total = self.sums(w)[0]
        else:
            dtype = tree.dtype(w)
            total = self.total(lambda batch, model: objective.sum(model, w, batch).astype(dtype), jnp.zeros((), dtype))
        return total / self.samples + tree.full_dot(self.model.shrinkage(w), w) / 2

    @override
    def grad(self, w: Vector) -> Vector:
        if isinstance(w, ParamsAndState):
            return self.with_model_state(w.state).grad(w.params)
        block_gradient = self.model.rewritten(jax.grad(self._block_loss))
        zero = jax.tree.map(jnp.zeros_like, tree.widen(w))
        total = self._sum_over_blocks(lambda p, m: tree.widen(block_gradient(w, p, m)), zero)
        mean = jax.tree.map(lambda g: g / self.samples, total)
        return tree.cast(tree.axpy(1, self.model.shrinkage(w), mean), w)

    @override
    def second_order(self, w: Vector) -> SecondOrder:
        if isinstance(w, ParamsAndState):
            return self.with_model_state(w.state).second_order(w.params)
        flat, restore = ravel_pytree(w)

        def of_block(positions: Array, mask: Array) -> Array:
            hessian: Array = jax.hessian(lambda v: self._block_loss(restore(v), positions, mask))(flat)
            return hessian

        total = self._sum_over_blocks(of_block, jnp.zeros((flat.size, flat.size), flat.dtype))
        shrinkage = ravel_pytree(self.model.shrinkage(jax.tree.map(jnp.ones_like, w)))[0]
        hessian = total / self.samples + jnp.diag(shrinkage)
        return SecondOrder(self.value(w), ravel_pytree(self.grad(w))[0], hessian)

    @override
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                   memory: PyTree[Any] = ()) -> tuple[Vector, PyTree[Any]]:
        """If training steps change the model's state, a memory is the state with which the step begins."""
        model, objective = self.model, self.objective
        if not isinstance(model, BoundModel) or not model.has_state or not jax.tree.leaves(memory):
            if objective is None:
                rows = self.offset + jnp.where(mask, positions, 0)
                gradient = model.batch_gradient(w, self.x, self.y, rows, mask)
            else:
                batch = self._batch(positions, mask)
                gradient = model.rewritten(jax.grad(lambda v: objective.mean(model, v, batch)))(w)
            return tree.axpy(1, model.shrinkage(w), gradient), memory
        rows, is_sample = _fill(positions, mask)
        x, y = (tree.rows(part, self.offset + rows) for part in (self.x, self.y))
        batch = Batch(x, y, is_sample, rows)
        in_step = model.at_step_with(memory)

        def mean(v: Vector) -> tuple[Array, PyTree[Any]]:
            outputs, after = in_step.outputs_and_state(v, batch.x)
            value = (batch.mean(Context(in_step, {}).losses(outputs, batch)) if objective is None else
                     objective.mean(in_step, v, batch))
            return value, after

        gradient, after = model.rewritten(jax.grad(mean, has_aux=True))(w)
        # A constant, such as the flag of BatchNorm in the mode ``ema``, leaves a rewritten program as a Python number.
        return tree.axpy(1, model.shrinkage(w), gradient), tree.cast(jax.tree.map(jnp.asarray, after), memory)

    @override
    def held_out(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Mean loss (without l2) and mean score, with larger values better, on the validation samples."""
        if isinstance(w, ParamsAndState):
            return self.with_model_state(w.state).held_out(w.params)
        if self.validation is None:
            return jnp.full((), jnp.nan, tree.dtype(w)), jnp.full((), jnp.nan, tree.dtype(w))
        offset, length = self.validation
        loss, score = replace(self, offset=offset, samples=length, validation=None, objective=None).sums(w)
        n = jnp.where(length > 0, length, jnp.nan).astype(loss.dtype)
        return loss / n, (score if self.model.loss.higher_is_better else -score) / n

    def _batch(self, positions: Array, mask: Array) -> Batch:
        rows = self.offset + jnp.where(mask, positions, 0)
        return Batch(tree.rows(self.x, rows), tree.rows(self.y, rows), mask, positions)

    def _block_loss(self, w: Vector, positions: Array, mask: Array) -> Array:
        """Sum of the local objective over the masked samples."""
        if self.objective is None:
            return self._block_sums(w, positions, mask)[0]
        return self.objective.sum(self.model, w, self._batch(positions, mask))

    def _block_sums(self, w: PyTree[Any], positions: Array, mask: Array) -> tuple[Array, Array]:
        """Sums of loss and score over the masked samples."""
        rows = self.offset + jnp.where(mask, positions, 0)
        losses, scores = self.model.losses_and_scores(w, self.x, self.y, rows, mask)
        loss, score = jnp.where(mask, losses, 0), jnp.where(mask, scores, 0)
        return jnp.sum(loss), jnp.sum(score)

    def _sum_over_blocks(self, f: Callable[[Array, Array], PyTree[Any]], zero: PyTree[Any]) -> PyTree[Any]:
        """The sum of ``f(positions, mask)`` over blocks that cover all of the party's samples."""
        def add_block(i: Array, total: PyTree[Any]) -> PyTree[Any]:
            positions = i * self.block + jnp.arange(self.block)
            return jax.tree.map(jnp.add, total, f(positions, positions < self.samples))
        return jax.lax.fori_loop(0, (self.samples + self.block - 1) // self.block, add_block, zero)


def _fill(positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> tuple[Int[Array, " B"], Bool[Array, " B"]]:
    """The minibatch in the first rows, and its samples in turn in the others, for statistics over all rows."""
    rows, count = jnp.arange(len(mask)), jnp.maximum(jnp.sum(mask), 1)
    return positions[jnp.argsort(~mask, stable=True)[rows % count]], rows < count
