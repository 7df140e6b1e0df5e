"""Selection of hyperparameters by each party on its held-out data, during training and without more communication."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, Info, Message, PartyState, Reply, local_solvers
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty
from resolvent.algorithms.combinators.held_out import Measure, best_held_out, check_measure
from resolvent.algorithms.keys import substep_key
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["HeldOutSelection"]

_CANDIDATES = 1000  # number of the first candidate's work, different from those of inner algorithms


class _Candidate(NamedTuple):
    """One candidate, or all of them with leaves [J, ...]."""

    algorithm: Algorithm  # the algorithm with the candidate's numbers
    state: PartyState  # the party's state for it


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

    def __check_init__(self) -> None:
        structure: Any = jax.tree.structure(self.inner)
        if any(structure != jax.tree.structure(other) for other in self.others):
            raise InputError("HeldOutSelection needs candidates that are one algorithm with different numbers, got "
                             f"{', '.join(type(a).__name__ for a in (self.inner, *self.others))}: build all by one "
                             "preset, with different numbers only")
        check_measure(self, self.by)

    @property
    def _algorithms(self) -> Algorithm:
        """All candidates' algorithms as one, with leaves [J, ...]."""
        stacked: Algorithm = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), self.inner,
                                          *self.others)
        return stacked

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        return jax.lax.map(lambda algorithm: algorithm.init_party(w0, oracle, key), self._algorithms)

    @override
    def party(self, inner: InnerParty, state: PartyState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[PartyState, Reply, Info]:
        # Without noise all candidates draw the same minibatches, so that they differ in their numbers only. With the
        # same noise in two candidates, their difference would have none.
        adds_noise = any(solver.adds_noise for solver in local_solvers(self.inner))

        def work(numbered: tuple[Array, _Candidate]) -> tuple[PartyState, Reply, Info]:
            number, candidate = numbered
            party = candidate.algorithm.phases[phase].party
            own_key = substep_key(key, _CANDIDATES + number) if adds_noise else key
            return party(candidate.state, message, oracle, own_key, effort)

        numbers = jnp.arange(1 + len(self.others))
        state, reply, info = jax.lax.map(work, (numbers, _Candidate(self._algorithms, state)))
        return state, tree.rows(reply, 0), tree.rows(info, 0)

    @override
    def personal_model(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        candidates = _Candidate(self._algorithms, state)
        best = self.best_candidate(state, message, oracle)
        return self._model(message, oracle, tree.rows(candidates, best))

    def best_candidate(self, state: PartyState, message: Message, oracle: Oracle) -> Int[Array, ""]:
        """The number of the candidate that a party uses; 0 is the first."""
        candidates = _Candidate(self._algorithms, state)
        return best_held_out(oracle, partial(self._model, message, oracle), candidates, self.by)

    def _model(self, message: Message, oracle: Oracle, candidate: _Candidate) -> Vector:
        return candidate.algorithm.personal_model(candidate.state, message, oracle)
