"""Which model a party uses: fine-tuned, or the shared one until the party has trained."""


import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Reply
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty, Wrapped
from resolvent.algorithms.keys import root_key
from resolvent.math.tree import Vector
from resolvent.problem.maps import OnlyLayers, as_patterns, check_patterns, through
from resolvent.problem.models.stateful import ParamsAndState, params_of, with_params
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem


class FineTuned(Combinator):
    """The parties train the inner algorithm's personal models further before use, on f_k; the rounds are unchanged.

    Source: the use of Reptile's and FedAvg's shared models in Nichol, Achiam, Schulman, and in the FedMix poster's
    comparison. The result of fine-tuning is not sent back.

    Attributes:
        inner: any algorithm.
        solver: local solver of the further training; its order of minibatches is the same each time.
        layers: patterns of the paths of the only leaves that are trained further, such as ``head``, see
            ``PersonalLayers``; default: all.

    Raises:
        InputError: when a party uses its model, a pattern matches no leaf.

    Example:
        >>> algorithm = rv.combinators.FineTuned(rv.fedavg(rv.SGD(0.1)), rv.SGD(0.01, epochs=1))
        >>> of_head = rv.combinators.FineTuned(rv.fedavg(rv.SGD(0.1)), rv.SGD(0.01, epochs=1), ["head"])
    """

    solver: LocalSolver
    layers: tuple[str, ...] | None = eqx.field(static=True, default=None, converter=as_patterns)

    @override
    def personal_model(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> Vector:
        model = super().personal_model(state, message, oracle)
        start = params_of(model)
        if isinstance(model, ParamsAndState):
            oracle = oracle.with_model_state(model.state)
        if self.layers is not None:
            check_patterns("FineTuned", self.layers, start)
            oracle = through(oracle, OnlyLayers(self.layers))
        # A fixed key, so that asking twice gives the same model.
        w, _, _ = self.solver(Subproblem(oracle, start), start, root_key(0), jnp.ones(()))
        return with_params(model, w)


class SharedUntilTrained(Combinator):
    """A party uses the shared model until one of its replies has counted; rounds are unchanged.

    With 1,000 parties and cohorts of 10, more than 10 % of the parties take part in none of 200 rounds. Without this
    combinator, a method with personal models leaves these parties with the first, untrained model. The papers of such
    methods do not say which model these parties use.

    Models of an algorithm without a shared model, such as ``local``, do not change, nor do those of one whose personal
    models are the shared model, such as ``fedavg``.

    Attributes:
        inner: any algorithm.

    Example:
        >>> algorithm = rv.combinators.SharedUntilTrained(rv.fedavg_plus(rv.SGD(0.1, batch_size=20, epochs=1)))
    """

    @override
    def init_party_extra(self, w0: Vector, oracle: Oracle, key: Array) -> Bool[Array, ""]:
        """Whether a reply of the party has counted."""
        return jnp.array(False)

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Reply, Info]:
        after, reply, info = super().party(inner, state, message, oracle, key, effort, phase)
        is_last = phase == len(self.inner.phases) - 1  # a party that leaves after an earlier phase has no new model
        return after._replace(extra=jnp.array(True)) if is_last else after, reply, info

    @override
    def model_message(self, state: Wrapped, k: Int[Array, ""]) -> Wrapped:
        """With the shared model; None if there is none."""
        return Wrapped(self.inner.model_message(state.inner, k), self.inner.server_model(state.inner))

    @override
    def personal_model(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> Vector:
        personal, shared = super().personal_model(state, message, oracle), message.extra
        if shared is None:
            return personal
        # A leaf that is the shared model's own is not selected, so that one evaluation still serves both models.
        shared = oracle.model_after(shared) if isinstance(personal, ParamsAndState) else shared
        return jax.tree.map(lambda a, b: a if a is b else jnp.where(state.extra, a, b).astype(a.dtype),
                            personal, shared)
