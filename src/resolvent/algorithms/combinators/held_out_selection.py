r"""Settings chosen by each party from its held-out data, during training, without a round or a byte more.

A party keeps one state per candidate and works for all of them in every round, from the same message and on the same
minibatches. The federation itself runs for the first candidate alone: its replies are the only ones that travel. What a
party deploys is the candidate that is best on its held-out samples:

.. code-block:: text

    party k:  (s_kj, r_kj) = candidate j's party step from s_kj and the message, for all j;   it replies r_k1
    server:   that of candidate 1
    deploys:  the best of the candidates' models on its held-out samples: score first, loss among equals

So the grid is run inside one run: rounds, the scarce thing in a federation, are not multiplied; local work is. The
candidates of a party are compared like with like, over whole histories, but around the first one's centre: the first
should therefore be the one that binds the parties most, for a centre of models that went their own ways is of little
use to those that would follow it, while one of models that stayed together serves the others too.
"""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from resolvent.algorithms.algorithm import Algorithm, Info, Message, PartyState, Phase, Reply
from resolvent.algorithms.combinators.combinator import Combinator
from resolvent.algorithms.combinators.held_out import Measure, best_held_out
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["HeldOutSelection"]


class HeldOutSelection(Combinator):
    """Several settings of one algorithm tried beside each other; each party deploys the best on its held-out data.

    A party without held-out samples deploys the first candidate's model. Local work and a party's memory are those of
    all candidates together.

    Attributes:
        inner: the first candidate, which the federation runs for.
        others: the same algorithm with other numbers; they see the first one's messages.
        by: what is compared on held-out samples: the ``score``, or the ``loss``.

    Raises:
        TypeError: the candidates are not one algorithm with other numbers.
    """

    others: tuple[Algorithm, ...]
    by: Measure = eqx.field(static=True, default="score")
    needs_held_out: ClassVar[bool] = True

    def __check_init__(self) -> None:
        same: Any = jax.tree.structure(self.inner)
        if any(same != jax.tree.structure(other) for other in self.others):
            raise TypeError("HeldOutSelection needs candidates that are one algorithm with other numbers, got "
                            f"{', '.join(type(a).__name__ for a in (self.inner, *self.others))}: build all by one "
                            "preset, and let only numbers differ")
        if self.by not in ("loss", "score"):
            raise ValueError(f"HeldOutSelection(by={self.by!r}) is not known: use 'score' or 'loss'")

    @property
    def _candidates(self) -> Algorithm:
        """All candidates as one: every number is [J]."""
        stacked: Algorithm = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), self.inner,
                                          *self.others)
        return stacked

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        """A state per candidate: leaves [J, ...]."""
        return jax.lax.map(lambda a: a.init_party(w0, oracle, key), self._candidates)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The inner phases, with work for every candidate."""
        return tuple(phase._replace(party=partial(self._work, number))
                     for number, phase in enumerate(self.inner.phases))

    def _work(self, number: int, state: PartyState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Reply, Info]:
        def of_candidate(given: tuple[Algorithm, PartyState]) -> tuple[PartyState, Reply, Info]:
            algorithm, own = given
            return algorithm.phases[number].party(own, message, oracle, key, effort)

        state, reply, info = jax.lax.map(of_candidate, (self._candidates, state))
        return state, tree.rows(reply, 0), tree.rows(info, 0)

    def personal_model(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        """The best of the candidates' models."""
        return self._model(message, oracle, tree.rows((self._candidates, state), self.chosen(state, message, oracle)))

    def chosen(self, state: PartyState, message: Message, oracle: Oracle) -> Int[Array, ""]:
        """The number of the candidate that a party deploys; 0 is the first."""
        return best_held_out(oracle, partial(self._model, message, oracle), (self._candidates, state), self.by)

    def _model(self, message: Message, oracle: Oracle, choice: tuple[Algorithm, PartyState]) -> Vector:
        algorithm, state = choice
        return algorithm.personal_model(state, message, oracle)
