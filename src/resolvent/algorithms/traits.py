"""Properties of an algorithm that follow from its functions: traffic, memory, personal or not, robust or not.

Sizes and dependences are those of the algorithm's own functions, which are traced and not run.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.algorithms.aggregators.aggregator import Aggregator, aggregators_of
from resolvent.algorithms.algorithm import Algorithm, Replies
from resolvent.algorithms.description import Description, describe
from resolvent.data.html_tables import html_facts
from resolvent.errors import shorten

_MODEL_SIZE = 100_800  # size of the model whose shapes are counted; divisible by the numbers up to 10, and by 16
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
    description = _describe(algorithm)
    return Traffic(*map(amount_of, (description.party, description.messages, description.replies)))


def is_personal(algorithm: Algorithm) -> bool:
    """Whether two parties may use different models: whether a party's model depends on its state, data or number."""
    return _describe(algorithm).is_personal


def is_robust(algorithm: Algorithm) -> bool:
    """Whether one reply, however large, cannot move any aggregate of the algorithm arbitrarily far."""
    if aggregators := aggregators_of(algorithm):
        return all(map(_has_breakdown_point, aggregators))
    return not _count(_describe(algorithm).replies)  # the parties reply nothing


def _has_breakdown_point(aggregator: Aggregator) -> bool:
    """Whether the breakdown point is above zero: as the aggregator states, or else by one outlier among 20 replies."""
    if hasattr(aggregator, "breakdown_point"):
        return bool(aggregator.breakdown_point > 0)
    points = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
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
    width = jnp.result_type(float).itemsize
    return sum(-(-leaf.size * leaf.dtype.itemsize // width) for leaf in jax.tree.leaves(shapes))


def _describe(algorithm: Algorithm) -> Description:
    """With a model of three layers, for methods that distinguish them: heads, or normalisation, may be personal."""
    head, norm = -(-_MODEL_SIZE // 8), _MODEL_SIZE // 64
    return describe(algorithm, jax.eval_shape(
        lambda: {"body": jnp.zeros(_MODEL_SIZE - head - norm), "norm": jnp.zeros(norm), "head": jnp.zeros(head)}))


def _replies(payload: Any) -> Replies:
    """The replies of as many parties as the payload has rows, with equal weights."""
    n = len(payload)
    return Replies(payload, jnp.full(n, 1 / n), jnp.arange(n), jnp.ones(n, bool), jnp.full(n, 1 / n))


def overview_html(algorithm: Algorithm) -> str:
    """A table of the traffic, the memory and the properties of an algorithm, computed from its functions."""
    facts: dict[str, object] = {"settings": repr(algorithm)}
    try:
        traffic = traffic_of(algorithm)
        facts |= {"a party stores (models)": traffic.stored, "a party receives in a round (models)": traffic.down,
                  "a party sends in a round (models)": traffic.up, "phases of a round": len(algorithm.phases),
                  "parties have models of their own": _yes_or_no(is_personal(algorithm)),
                  "one reply cannot move the aggregate arbitrarily far": _yes_or_no(is_robust(algorithm)),
                  "work of stragglers": {"drop": "dropped", "keep": "kept", None: "as the run says"}[
                      algorithm.straggler_policy]}
    except (TypeError, ValueError, KeyError) as error:  # an algorithm for models of another structure than the example
        facts["traffic and memory"] = f"not computed, for a model with the layers body, norm and head: {shorten(error)}"
    return html_facts(type(algorithm).__name__, facts)


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"
