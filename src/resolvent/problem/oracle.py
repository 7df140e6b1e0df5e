"""Oracles: the operations on one party's objective f_k.

A local solver uses only its oracle, so the same solver works for samples, quadratics and objectives of your own.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.math import tree
from resolvent.math.newton import SecondOrder
from resolvent.math.tree import Vector
from resolvent.problem.models.model import Model
from resolvent.problem.models.stateful import ParamsAndState
from resolvent.problem.objective import Batch, LocalObjective


class PartyMemory(NamedTuple):
    """The memory that a party's local work hands on from one round to the next; () if there is none.

    Attributes:
        oracle: memory of the oracle, such as the last outputs of a policy (``Oracle.init_memory``).
        solver: memory of the local solver, such as the moments of an optimizer (``LocalSolver.init_memory``).
    """

    oracle: PyTree[Any] = ()
    solver: PyTree[Any] = ()


NO_MEMORY = PartyMemory()  # with it, local work begins anew


class Recording(eqx.Module):
    """What is recorded of a party's local work in addition to its results. Compiled functions are specialised to it.

    Attributes:
        names: names of the info that is computed even if no reply needs it, such as ``inexactness``.
        on_work: if set, local work calls it with its name, and returns its start and the memory with which it begins:
            it does not solve.
    """

    names: tuple[str, ...] = eqx.field(static=True, default=())
    on_work: Callable[[str], None] | None = eqx.field(static=True, default=None)


class Oracle(eqx.Module):
    """One party's objective f_k.

    A party's work gets it, and reads f_k by ``value``, ``grad`` and ``batch_grad``. ``total`` sums a function over the
    samples, ``held_out`` scores a model on samples that are not used for training, ``with_objective`` replaces f_k by
    an objective of its own. ``SampleOracle``, the oracle of a model on data, has in addition the model and the samples
    themselves: ``.model``, ``.x``, ``.y``.

    Attributes:
        samples: n_k, the number of samples that minibatches are drawn from; at least 1.
        memory: name of a local work -> the memory with which it begins; a work without one begins anew.
        recording: what is recorded of the local work; None: nothing.
    """

    samples: Int[Array, ""]
    memory: dict[str, PartyMemory] = eqx.field(default_factory=dict, kw_only=True)
    recording: Recording | None = eqx.field(default=None, kw_only=True)

    @abstractmethod
    def value(self, w: Vector) -> Float[Array, ""]:
        """f_k(w): the party's objective, the mean loss over all of its samples."""

    @abstractmethod
    def grad(self, w: Vector) -> Vector:
        """The gradient of f_k at w, over all of the party's samples."""

    @abstractmethod
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                   memory: PyTree[Any] = ()) -> tuple[Vector, PyTree[Any]]:
        """The mean gradient over a minibatch, and the memory after it.

        Args:
            w: the point.
            positions: positions of the samples among the party's, in [0, samples).
            mask: which of the positions belong to the minibatch.
            memory: as ``init_memory`` or this function returned it; () for a gradient that depends on no earlier one.
                An oracle without a memory returns what it gets.
        """

    def init_memory(self, w: Vector) -> PyTree[Any]:
        """The oracle's memory before the first round; () if its gradients do not depend on earlier ones."""
        return ()

    @property
    def has_random_layers(self) -> bool:
        """Whether minibatch gradients depend on random numbers, see ``Model.has_random_layers``."""
        return False

    def model_after(self, params: Vector, work: str = "") -> Vector:
        """The model with these parameters, and with the state that the local work of this name has left.

        A model without a state is its parameters, and so they are returned; so is a model that has its state already.
        """
        if self.model_state is None or isinstance(params, ParamsAndState):
            return params
        after = self.memory[work].oracle if work in self.memory else ()
        return ParamsAndState(params, after or self.model_state)

    @property
    def model_state(self) -> dict[str, Any] | None:
        """The state to which ``with_model_state`` has bound the model; None if it has none."""
        return None

    def with_model_state(self, state: dict[str, Any], *, changes: bool = False) -> "Oracle":
        """The oracle of the parameters alone, of a model that has a state.

        Args:
            state: the model's state.
            changes: whether minibatch gradients change it; otherwise they use it as it is.

        Raises:
            TypeError: oracles of this kind have no model with a state.
        """
        raise TypeError(f"{type(self).__name__} has no model with a state: leave ModelState out")

    def with_objective(self, objective: LocalObjective, **values: Any) -> "Oracle":
        """The oracle whose objective is a function of a minibatch and a context, instead of f_k.

        Args:
            objective: (params, batch, context) -> the objective of each sample.
            **values: what the context holds, by name, such as ``shared=w``.

        Raises:
            TypeError: oracles of this kind have no samples of which there are minibatches.
        """
        raise TypeError(f"{type(self).__name__} has no samples for the local objective {type(objective).__name__}: use "
                        "a model on data")

    def total(self, f: Callable[[Batch, Model], PyTree[Any]], zero: PyTree[Any]) -> PyTree[Any]:
        """The sum of f(batch, model) over consecutive blocks of the party's samples, such as sums of features.

        Args:
            f: (batch, model) -> a tree of sums over the rows of the batch for which ``batch.mask`` is true.
            zero: the sum over no samples; it has the shapes and dtypes of the result.

        Raises:
            TypeError: oracles of this kind have no samples.
        """
        raise TypeError(f"{type(self).__name__} has no samples to sum over: use a model on data")

    def at_step(self, key: Array) -> "Oracle":
        """The oracle of one minibatch step, whose random layers draw from this key; by default itself."""
        return self

    def proximal_point(self, center: Vector, weight: ArrayLike, linear: Vector | None) -> Vector:
        """The exact minimiser over w of f_k(w) + <linear, w> + weight/2 |w - center|^2.

        Args:
            center: the centre of the proximal term.
            weight: the weight of the proximal term; 0 for the minimiser of f_k + <linear, .>.
            linear: the linear term; None for zero.

        Raises:
            TypeError: this kind of oracle has no exact minimiser in closed form.
        """
        raise TypeError(f"the exact minimiser needs a quadratic problem, got {type(self).__name__}: use the solver "
                        "SGD or GD")

    def second_order(self, w: Vector) -> SecondOrder:
        """f_k, its gradient and its Hessian, over all of the party's samples, with w as one vector of P numbers.

        Raises:
            TypeError: oracles of this kind have no Hessian.
        """
        raise TypeError(f"{type(self).__name__} has no second derivatives: give it a method second_order(), or use a "
                        "method that needs gradients only")

    def held_out(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Mean loss, and mean score with larger values better, on samples that are not used for training.

        Returns:
            The means; nan if there are no such samples.

        Raises:
            TypeError: oracles of this kind have no held-out samples.
        """
        raise TypeError(f"{type(self).__name__} has no held-out samples for a choice between models: give it a method "
                        "held_out()")


class ShapeOracle(Oracle):
    """An oracle without data: every answer is zero and has the right shape and dtype.

    It is for tracing an algorithm with ``jax.eval_shape`` where no data exist: a server that needs the shapes of the
    parties' replies has none.
    """

    samples: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.array(1))
    state: dict[str, Any] | None = eqx.field(default=None, kw_only=True)
    changes: bool = eqx.field(static=True, default=False, kw_only=True)

    @property
    @override
    def model_state(self) -> dict[str, Any] | None:
        return self.state

    @override
    def init_memory(self, w: Vector) -> PyTree[Any]:
        return self.state if self.state is not None and self.changes else ()

    @override
    def with_objective(self, objective: LocalObjective, **values: Any) -> "ShapeOracle":
        return self

    @override
    def with_model_state(self, state: dict[str, Any], *, changes: bool = False) -> "ShapeOracle":
        return replace(self, state=state, changes=changes)

    @override
    def total(self, f: Callable[[Batch, Model], PyTree[Any]], zero: PyTree[Any]) -> PyTree[Any]:
        return zero

    @override
    def value(self, w: Vector) -> Float[Array, ""]:
        return jnp.zeros((), tree.dtype(w))

    @override
    def grad(self, w: Vector) -> Vector:
        return jax.tree.map(jnp.zeros_like, w)

    @override
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                   memory: PyTree[Any] = ()) -> tuple[Vector, PyTree[Any]]:
        return jax.tree.map(jnp.zeros_like, w), memory

    @override
    def second_order(self, w: Vector) -> SecondOrder:
        flat = ravel_pytree(w)[0]
        return SecondOrder(jnp.zeros((), flat.dtype), jnp.zeros_like(flat), jnp.eye(flat.size, dtype=flat.dtype))

    @override
    def proximal_point(self, center: Vector, weight: ArrayLike, linear: Vector | None) -> Vector:
        return jax.tree.map(jnp.zeros_like, center)

    @override
    def held_out(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        zero = jnp.zeros((), tree.dtype(w))
        return zero, zero


def remembering(oracle: Oracle, memory: dict[str, PartyMemory]) -> Oracle:
    """The oracle with the memory with which each local work begins, by its name."""
    return _with(oracle, lambda o: o.memory, memory)


def recording(oracle: Oracle, names: tuple[str, ...] = (), on_work: Callable[[str], None] | None = None) -> Oracle:
    """The oracle whose local work is recorded, see ``Recording``."""
    return _with(oracle, lambda o: o.recording, Recording(names, on_work))


def _with(oracle: Oracle, field: Callable[[Oracle], Any], value: Any) -> Oracle:
    changed: Oracle = eqx.tree_at(field, oracle, value, is_leaf=lambda x: x is None or isinstance(x, dict))
    return changed
