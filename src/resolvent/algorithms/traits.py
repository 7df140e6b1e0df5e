"""Properties of an algorithm that follow from its functions: traffic, memory, personal or not, robust or not.

Sizes and dependences are those of the algorithm's own functions, which are traced and not run.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Array
from typing_extensions import override

from resolvent.algorithms.aggregators import Aggregator
from resolvent.algorithms.aggregators.aggregator import aggregators_of
from resolvent.algorithms.algorithm import Algorithm, Phase, Replies
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.maps import Gradient, Map, through
from resolvent.problem.oracle import Oracle, QuadraticOracle

__all__ = ["Amount", "Traffic", "amount_of", "is_personal", "is_robust", "traffic_of"]

_MODEL_SIZE = 100_800  # size of the model whose shapes are counted; divisible by the numbers up to 10, and by 16
_SMALL_MODEL_SIZE = 3  # size of the model where only the dependence or the presence of numbers counts
_PARTIES = 3
_MAX_NUMBERS = 1000  # more numbers than this are counted as a share of a model


@dataclass(frozen=True)
class Amount:
    """An amount of numbers, counted in models and single numbers.

    Attributes:
        models: multiple of the model's size, for numbers of 32 bits.
        numbers: the remaining numbers.
    """

    models: float
    numbers: int

    def __str__(self) -> str:
        """Such as ``2``, ``1/2`` or ``1 + 3 numbers``; ``-`` for no numbers."""
        models = str(Fraction(self.models).limit_denominator(64)) if self.models else ""
        numbers = f"{self.numbers} number{'s' * (self.numbers > 1)}" if self.numbers else ""
        return " + ".join(part for part in (models, numbers) if part) or "-"


class Traffic(NamedTuple):
    """What a party stores between rounds, receives in a round and replies, over all phases."""

    stored: Amount
    down: Amount
    up: Amount


def traffic_of(algorithm: Algorithm) -> Traffic:
    """The sizes of a party's state, of the messages to it and of its replies in a round."""
    states = _states(algorithm, _MODEL_SIZE)
    return Traffic(*map(amount_of, (states.party, *_exchanges(algorithm, states, _MODEL_SIZE))))


def is_personal(algorithm: Algorithm) -> bool:
    """Whether two parties may use different models: whether a party's model depends on its state, data or number.

    The dependence is that of the traced program. Nothing is computed.
    """
    states = _states(algorithm, _SMALL_MODEL_SIZE)

    def personal_model(server: Any, *of_party: Any) -> Vector:
        state, oracle, number = of_party
        return algorithm.personal_model(state, algorithm.model_message(server, number), oracle)

    oracle = _oracle(_SMALL_MODEL_SIZE)
    program = jax.make_jaxpr(personal_model)(states.server, states.party, oracle, jnp.array(0)).jaxpr
    _, is_read = dce_jaxpr(program, [True] * len(program.outvars))
    return any(is_read[len(jax.tree.leaves(states.server)):])


def is_robust(algorithm: Algorithm) -> bool:
    """Whether one reply, however large, cannot move any aggregate of the algorithm arbitrarily far."""
    if aggregators := aggregators_of(algorithm):
        return all(map(_has_breakdown_point, aggregators))
    _, replies = _exchanges(algorithm, _states(algorithm, _SMALL_MODEL_SIZE), _SMALL_MODEL_SIZE)
    return not _count(replies)  # the parties reply nothing


def _has_breakdown_point(aggregator: Aggregator) -> bool:
    """Whether the breakdown point is above zero: as the aggregator states, or else by one outlier among 20 replies."""
    if hasattr(aggregator, "breakdown_point"):
        return bool(aggregator.breakdown_point > 0)
    points = np.random.default_rng(0).normal(size=(20, _SMALL_MODEL_SIZE)).astype(np.float32)
    points[7] = 1e6
    centre, _ = aggregator(_replies(jnp.asarray(points)))
    return bool(jnp.max(jnp.abs(centre)) < 10)


def amount_of(shapes: Any) -> Amount:
    """The amount of numbers in a tree of arrays or shapes, relative to a model of ``_MODEL_SIZE``."""
    count = _count(shapes)
    for models in (Fraction(count // _MODEL_SIZE), Fraction(count, _MODEL_SIZE).limit_denominator(64)):
        numbers = count - models * _MODEL_SIZE
        if 0 <= numbers < _MAX_NUMBERS:
            return Amount(float(models), int(numbers))
    return Amount(count / _MODEL_SIZE, 0)


def _count(shapes: Any) -> int:
    """The size in numbers of the model's width."""
    width = jnp.zeros(()).dtype.itemsize
    return sum(-(-leaf.size * leaf.dtype.itemsize // width) for leaf in jax.tree.leaves(shapes))


class _States(NamedTuple):
    server: Any
    party: Any


def _shares() -> Array:
    return jnp.full(_PARTIES, 1 / _PARTIES)


def _oracle(size: int) -> Oracle:
    """The shapes of a party's objective."""
    def make() -> Oracle:
        return through(QuadraticOracle(jnp.array(1), jnp.eye(size), jnp.zeros(size), jnp.zeros(())), _Joined())
    return cast(Oracle, jax.eval_shape(make))


class _Joined(Map):
    """T(w): the leaves of the parameters as one vector."""

    @override
    def __call__(self, w: Vector, grad: Gradient) -> Vector:
        return ravel_pytree(w)[0]

    @override
    def pullback(self, w: Vector, g: Vector, grad: Gradient) -> Vector:
        joined: Vector = ravel_pytree(w)[1](g)
        return joined


def _model(size: int) -> Vector:
    """A model of two layers, for methods that distinguish them; ``fedrep`` has personal heads."""
    head = -(-size // 8)
    return {"body": jnp.zeros(size - head), "head": jnp.zeros(head)}


def _states(algorithm: Algorithm, size: int) -> _States:
    """The shapes of the first states."""
    def make(oracle: Oracle) -> _States:
        w0 = _model(size)
        return _States(algorithm.init(w0, _shares()), algorithm.init_party(w0, oracle, jax.random.key(0)))
    return cast(_States, jax.eval_shape(make, _oracle(size)))


def _exchanges(algorithm: Algorithm, states: _States, size: int) -> tuple[list[Any], list[Any]]:
    """The shapes of every phase's message and reply, in the first round."""
    server, party = states
    messages, replies = [], []
    for phase in algorithm.phases:
        def exchange(server: Any, party: Any, oracle: Oracle, phase: Phase = phase) -> tuple[Any, ...]:
            message = phase.message(server, jnp.array(0))
            party, reply, _ = phase.party(party, message, oracle, jax.random.key(0), jnp.ones(()))
            server, _ = phase.server(server, _replies(tree.stack(reply, _PARTIES)), jax.random.key(0))
            return server, party, message, reply
        server, party, message, reply = jax.eval_shape(exchange, server, party, _oracle(size))
        messages.append(message)
        replies.append(reply)
    return messages, replies


def _replies(payload: Any) -> Replies:
    """The replies of all parties, with equal weights."""
    n = len(jax.tree.leaves(payload)[0]) if jax.tree.leaves(payload) else _PARTIES
    return Replies(payload, jnp.full(n, 1 / n), jnp.arange(n), jnp.ones(n, bool), jnp.full(n, 1 / n))
