"""Personal layers: some leaves of the parameters stay at the parties, and only the others are sent and averaged."""

from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Message, Replies
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    InnerMessage,
    InnerParty,
    InnerServer,
    Wrapped,
)
from resolvent.algorithms.keys import substep_key
from resolvent.algorithms.method import info_of_all, local_work
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.maps import OnlyLayers, as_patterns, check_patterns, through
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

_PERSONAL_WORK = 301  # number of the work on the personal leaves, different from those of inner algorithms


class PersonalLayers(Combinator):
    """The inner algorithm on the shared leaves of the parameters; each party trains its own copy of the others.

    .. code-block:: text

        party:   w_k = local work of the inner algorithm from (shared part of w~, own part of w_k)
                 reply the shared part of w_k; store the personal part
        server:  the inner algorithm's step on the shared part

    Personal heads are FedPer and, with the roles of body and head exchanged, LG-FedAvg; personal normalisation layers
    are FedBN. With a ``personal_solver`` a party first trains the personal part with the shared part fixed, and then
    the shared part with the personal part fixed: FedRep. With ``trained=False`` the personal part is not trained, and
    stays as in the first model: the rounds of FedBABU.

    Source: Arivazhagan, Aggarwal, Singh, Choudhary, *Federated Learning with Personalization Layers*, Algorithm 1; Li,
    Jiang, Zhang, Kamp, Dou, *FedBN: Federated Learning on Non-IID Features via Local Batch Normalization*; Liang et
    al., *Think Locally, Act Globally: Federated Learning with Local and Global Representations*; Collins, Hassani,
    Mokhtari, Shakkottai, *Exploiting Shared Representations for Personalized Federated Learning*, Algorithm 1.

    The inner algorithm's message must be a model and its replies models, as in FedAvg, FedProx and robust averaging.
    A proximal term at w~ keeps the personal leaves near their own last value. There is no shared model.

    Attributes:
        inner: an algorithm of one phase whose message and replies are models.
        layers: patterns of the paths of the personal leaves, such as ``head*``, with the wildcards of ``fnmatch``. A
            path joins the keys by dots, such as ``layer 1.weight``; a pattern that matches a prefix which ends at a
            dot selects all leaves below it. Alternatives are joined by ``|``, such as ``norm*|bn*``.
        personal_solver: trains the personal leaves before the inner algorithm trains the shared ones; default: the
            inner algorithm trains all leaves together.
        trained: whether the personal leaves are trained.

    Raises:
        InputError: the inner algorithm does not exchange models; no pattern, or, at the first round, a pattern that
            matches no leaf, or patterns that match all leaves.

    Example:
        >>> solver = rv.SGD(0.1, batch_size=20, epochs=1)
        >>> fedper = rv.combinators.PersonalLayers(rv.fedavg(solver), ["head"])
        >>> fedbn = rv.combinators.PersonalLayers(rv.fedavg(solver), ["*norm*"])
        >>> fedrep = rv.combinators.PersonalLayers(rv.fedavg(solver), ["head"], rv.SGD(0.1, batch_size=20, epochs=10))
    """

    layers: tuple[str, ...] = eqx.field(static=True, converter=as_patterns)
    personal_solver: LocalSolver | None = None
    trained: bool = eqx.field(static=True, default=True)
    replies_models: ClassVar[bool] = False  # they are a part of a model

    def __check_init__(self) -> None:
        if self.personal_solver is not None and not self.trained:
            raise InputError("PersonalLayers(trained=False) does not train the personal layers: leave personal_solver "
                             "out")
        if not self.layers:
            raise InputError("PersonalLayers needs at least one pattern of layers, such as 'head*'")
        if not self.inner.replies_models or len(self.inner.phases) != 1:
            raise InputError(f"PersonalLayers needs an algorithm of one phase whose replies are models, got "
                             f"{type(self.inner).__name__}: use fedavg, fedprox or robust")

    @override
    def init_party_extra(self, w0: Vector, oracle: Oracle, key: Array) -> dict[str, Array]:
        """The personal leaves, by path."""
        return self._split(w0)[0]

    @override
    def init_extra(self, inner: Any, w0: Vector, shares: Float[Array, " N"]) -> dict[str, Array]:
        message = self.inner.phases[0].message(inner, jnp.array(0))
        if (jax.tree.structure(self._model_in(message)) != jax.tree.structure(w0)  # type: ignore[operator]
                or len(jax.tree.leaves(message)) != len(jax.tree.leaves(w0))):
            raise InputError(f"PersonalLayers needs an algorithm that sends one model, got "
                             f"{type(self.inner).__name__}: use fedavg, fedprox or robust")
        return self._split(w0)[0]

    @override
    def message(self, inner: InnerMessage, state: Wrapped, k: Int[Array, ""], phase: int) -> Wrapped:
        """The inner message with empty arrays instead of the personal leaves, which a party replaces by its own."""
        whole = inner(state.inner, k)
        empty = {path: leaf.ravel()[:0] for path, leaf in self._split(self._model_in(whole))[0].items()}
        return Wrapped(self._with_leaves(whole, empty), ())

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, dict[str, Array], Info]:
        model = self._merged(self._model_in(message.inner), state.extra)
        first: Info = {}
        if self.personal_solver is not None:
            of_personal = Subproblem(through(oracle, OnlyLayers(self.layers, True)), model)
            model, first = local_work(self.personal_solver, of_personal, model, substep_key(key, _PERSONAL_WORK),
                                      effort, name="personal layers")
        if self.personal_solver is not None or not self.trained:
            oracle = through(oracle, OnlyLayers(self.layers, False))
        whole = jax.tree.unflatten(jax.tree.structure(message.inner), jax.tree.leaves(model))
        after, model, info = inner(state.inner, whole, oracle, key, effort)
        personal, shared = self._split(model)
        return Wrapped(after, personal), shared, info_of_all(first, info)

    @override
    def server(self, inner: InnerServer, state: Wrapped, replies: Replies, key: Array,
               phase: int) -> tuple[Wrapped, Info]:
        # The inner algorithm sees models whose personal leaves are all the first ones, which therefore stay.
        rows = len(replies.weight)
        first = jax.tree.map(lambda leaf: jnp.where(replies.column(leaf), leaf, 0), tree.stack(state.extra, rows))
        like = self._model_in(self.inner.phases[phase].message(state.inner, jnp.array(0)))
        payload = self._merged(like, replies.payload | first)
        after, info = inner(state.inner, replace(replies, payload=payload), key)
        return Wrapped(after, state.extra), info

    @override
    def personal_model(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> Vector:
        return self.inner.personal_model(state.inner, self._with_leaves(message.inner, state.extra), oracle)

    @override
    def server_model(self, state: Wrapped) -> None:
        return None

    @staticmethod
    def _model_in(message: Message) -> Vector:
        """The model that is the message of the innermost algorithm, in messages of combinators without parts."""
        while isinstance(message, Wrapped):
            message = message.inner
        return message

    def _with_leaves(self, message: Message, leaves: dict[str, Array]) -> Message:
        """The inner algorithm's message with these leaves of its model."""
        model = self._merged(self._model_in(message), leaves)
        return jax.tree.unflatten(jax.tree.structure(message), jax.tree.leaves(model))

    def _split(self, model: Vector) -> tuple[dict[str, Array], dict[str, Array]]:
        """The personal and the shared leaves, by path."""
        check_patterns("PersonalLayers", self.layers, model)
        leaves = dict(tree.named_leaves(model))
        personal = {path: leaf for path, leaf in leaves.items() if tree.is_selected(self.layers, path)}
        shared = {path: leaf for path, leaf in leaves.items() if path not in personal}
        if not shared:
            raise InputError(f"PersonalLayers(layers={list(self.layers)}) matches all parameters, so that nothing is "
                             "shared: use local(...)")
        return personal, shared

    @staticmethod
    def _merged(model: Vector, leaves: dict[str, Array]) -> Vector:
        """The model with these leaves instead of its own."""
        paths = [path for path, _ in tree.named_leaves(model)]
        return jax.tree.unflatten(jax.tree.structure(model), [
            leaves.get(path, leaf) for path, leaf in zip(paths, jax.tree.leaves(model), strict=True)])
