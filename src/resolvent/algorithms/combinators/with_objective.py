"""The inner algorithm on a local objective with a context."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, Info, Reply
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty, Wrapped
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.stateful import params_of
from resolvent.problem.objective import LocalObjective, as_objective
from resolvent.problem.oracle import Oracle


class WithObjective(Combinator):
    """The inner algorithm, whose parties train on loss(params, batch, context) instead of the loss of the model.

    The context has ``shared``, the model that the party would use before its work, which is the shared model of an
    inner algorithm that has one, and, if the objective needs it, ``previous``, the party's model after its last work
    whose reply counted (before the first: the first model). What the inner algorithm adds, such as a proximal or a
    linear term, a map or private gradients, applies to the objective. The model that a party uses is not changed.

    Attributes:
        inner: an algorithm of one phase.
        objective: a ``LocalObjective``, or a function (params, batch, context) -> [B], the objective of each sample.

    Raises:
        InputError: the inner algorithm has several phases; or the objective is neither.

    Example:
        The loss plus the distance to the outputs of the shared model:

        >>> def distilled(params, batch, context):
        ...     outputs, of_shared = (context.outputs(w, batch) for w in (params, context.shared))
        ...     return context.losses(outputs, batch) + jnp.mean((outputs - of_shared) ** 2, axis=-1)
        >>> algorithm = rv.combinators.WithObjective(rv.fedavg(rv.SGD(0.1, batch_size=20, epochs=1)), distilled)
    """

    objective: LocalObjective

    def __init__(self, inner: Algorithm, objective: LocalObjective | Callable[..., Array]) -> None:
        self.inner, self.objective = inner, as_objective(objective)
        if len(inner.phases) != 1:
            raise InputError(f"WithObjective needs an algorithm of one phase, got {type(inner).__name__} with "
                             f"{len(inner.phases)}: use fedavg, fedprox or scaffold")

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Wrapped:
        """The party stores its model after its last work, if the objective needs it."""
        previous = w0 if self.objective.uses_previous else None
        return Wrapped(self.inner.init_party(w0, self._on(oracle, w0, previous), key), previous)

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Reply, Info]:
        shared, previous = params_of(self.personal_model(state, message, oracle)), state.extra
        after, reply, info = inner(state.inner, message.inner, self._on(oracle, shared, previous), key, effort)
        if previous is not None:
            if "model" not in info:
                raise InputError(f"the objective {type(self.objective).__name__} needs the model after a party's work, "
                                 f"and {type(self.inner).__name__} has none in its info: use fedavg, fedprox or "
                                 "scaffold")
            previous = tree.cast(info["model"], previous)
        return Wrapped(after, previous), reply, info

    def _on(self, oracle: Oracle, shared: Vector, previous: Vector | None) -> Oracle:
        values: dict[str, Any] = {"shared": shared} | ({} if previous is None else {"previous": previous})
        return oracle.with_objective(self.objective, **jax.lax.stop_gradient(values))
