"""What each preset is, found out from its code: what a party keeps, what travels, personal or not, robust or not.

Nothing here is declared a second time: sizes are the shapes of the algorithm's own functions, computed without running
them, and the source is the docstring's. So the table of algorithms grows by itself.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from resolvent.algorithms.aggregators.aggregator import Aggregator
from resolvent.algorithms.algorithm import Algorithm, Phase, Replies
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.problem.oracle import Oracle, QuadraticOracle
from resolvent.problem.solvers.solver import SGD
from resolvent.study.components import bind, first_line, listings, parameters

__all__ = ["CAPTION", "LABELS", "Amount", "Entry", "catalogue", "paragraphs", "table"]

LABELS = ("Problem", "Update", "Travels", "Defaults", "Use when", "Source")
CAPTION = ("keeps: what a party stores between rounds; down, up: what it is sent and replies in a round, all exchanges "
           "together; all in models, at the preset's defaults. personal: parties deploy different models. robust: one "
           "party cannot carry away what is shared.")
_LARGE = 100_800  # the size of the model whose shapes are counted; divisible by all numbers to 10, and by 16
_TINY = 3  # and of the model on which parties' models are compared
_PARTIES = 3
_FEW = 1000  # numbers that are not a part of a model


@dataclass(frozen=True)
class Amount:
    """An amount of numbers, in models and numbers beside them.

    Attributes:
        models: how many times the model's size, where a number is one of 32 bits.
        numbers: what is left over.
    """

    models: float
    numbers: int

    def __str__(self) -> str:
        """Such as ``2``, ``1/2`` or ``1 + 3 numbers``; ``-`` for nothing."""
        models = str(Fraction(self.models).limit_denominator(64)) if self.models else ""
        numbers = f"{self.numbers} number{'s' * (self.numbers > 1)}" if self.numbers else ""
        return " + ".join(part for part in (models, numbers) if part) or "-"


@dataclass(frozen=True)
class Entry:
    """One preset's row.

    Attributes:
        name: the preset.
        title: the first line of its docstring.
        source: the paper and the equation.
        keeps: what a party keeps between rounds.
        down: what a party is sent in a round, all phases together.
        up: what it replies.
        phases: exchanges in a round.
        personal: whether parties deploy different models.
        robust: whether one party, however far off, cannot carry the others' shared model away.
        given: the components that it was built with where it has no default of its own.
    """

    name: str
    title: str
    source: str
    keeps: Amount
    down: Amount
    up: Amount
    phases: int
    personal: bool
    robust: bool
    given: Mapping[str, str]

    def record(self) -> dict[str, Any]:
        """The entry as plain data, for programs."""
        return asdict(self)


def catalogue() -> list[Entry]:
    """All presets, at their defaults, in the order in which they are listed."""
    return [entry(name, preset) for name, preset in listings()["algorithms"].items()]


def table(entries: list[Entry]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The table that people read: its head and its rows, as text."""
    def said(value: bool, given: Mapping[str, str]) -> str:
        return ", ".join(["yes" if value else "no", *(f"with {part}" for part in given.values())])

    head = ("algorithm", "keeps", "down", "up", "personal", "robust", "source")
    return head, [(e.name, str(e.keeps), str(e.down), str(e.up), said(e.personal, {}), said(e.robust, e.given),
                   e.source) for e in entries]


def entry(name: str, preset: Callable[..., Algorithm]) -> Entry:
    """One preset at its defaults; a component that has no default is the first of its kind that needs no settings."""
    algorithm, given = _built(name, preset)
    down, up, kept = _traffic(algorithm)
    return Entry(
        name=name, title=first_line(preset), source=paragraphs(preset).get("Source", "").rstrip("."),
        keeps=_amount(kept), down=_amount(down), up=_amount(up), phases=len(algorithm.phases),
        personal=is_personal(algorithm), robust=not _numbers(up) or robust(algorithm), given=given)


@cache
def paragraphs(function: Callable[..., Any]) -> dict[str, str]:
    """The labelled paragraphs of a preset's docstring, see ``LABELS``: from the label to the next, or a blank line."""
    found: dict[str, list[str]] = {}
    label = None
    for line in (inspect.getdoc(function) or "").split("\n"):
        start = re.match(rf"({'|'.join(LABELS)}): (.*)", line)
        if start:
            label, line = start[1], start[2]
        if not line.strip():
            label = None
        if label:
            found.setdefault(label, []).append(line.strip())
    return {key: " ".join(lines) for key, lines in found.items()}


def is_personal(algorithm: Algorithm) -> bool:
    """Whether two parties would deploy different models: because of what they keep, their data, or what they are sent.

    Parties keep arbitrary states; the server's is arbitrary too, or one that its own step makes of arbitrary replies.
    """
    random = np.random.default_rng(0)
    model_message = algorithm.model_message
    server = _filled(algorithm.init(jnp.zeros(_TINY), _weights()), random)
    oracles = [_filled(_oracle(_TINY), random) for _ in range(2)]
    states = [_filled(_states(algorithm, _TINY)[1], random) for _ in range(2)]

    def deployed(who: int, number: int, server: Any) -> Any:
        return algorithm.personal_model(states[who], model_message(server, jnp.array(number)), oracles[who])

    if _differ(deployed(0, 0, server), deployed(1, 0, server)):
        return True
    if not _differ(deployed(0, 0, server), deployed(0, 1, server)):
        return False
    # Each is sent something else; that may only be so because this state of the server is arbitrary.
    server = algorithm.init(jnp.zeros(_TINY), _weights())
    for phase, reply in zip(algorithm.phases, _exchanges(algorithm, _TINY)[1], strict=True):
        server, _ = phase.server(server, _replies(_filled(reply, random, _PARTIES)), jax.random.key(0))
    return _differ(deployed(0, 0, server), deployed(0, 1, server))


def robust(algorithm: Algorithm) -> bool:
    """Whether no aggregate lets one party, however far off, carry it away."""
    def is_aggregator(part: Any) -> bool:
        return isinstance(part, Aggregator)

    aggregators = [a for a in jax.tree.leaves(algorithm, is_leaf=is_aggregator) if is_aggregator(a)]
    return bool(aggregators) and all(map(_withstands, aggregators))


def _withstands(aggregator: Aggregator) -> bool:
    """Whether its breakdown point is above zero: what it says itself, or else what one wild reply of twenty does."""
    if hasattr(aggregator, "breakdown"):
        return bool(aggregator.breakdown > 0)
    points = np.random.default_rng(0).normal(size=(20, _TINY)).astype(np.float32)
    points[7] = 1e6
    centre, _ = aggregator(_replies(jnp.asarray(points)))
    return bool(jnp.max(jnp.abs(centre)) < 10)


def _built(name: str, preset: Callable[..., Algorithm]) -> tuple[Algorithm, dict[str, str]]:
    """The preset at its defaults, and the components that had to be chosen."""
    solver = frozenset({"solver"})
    needed = {key: p.registry for key, p in parameters(preset).items()
              if p.registry and p.default is inspect.Parameter.empty and key not in solver}
    simple = [[n for n, f in registry.functions.items() if _required(f) <= registry.given]
              for registry in needed.values()]
    refused: InputError | None = None
    for names in product(*simple):
        given = dict(zip(needed, names, strict=True))
        try:
            return bind(preset, given, where=name, given=solver).build(solver=SGD(0.1, steps=1)), given
        except InputError as error:  # it needs another kind of algorithm inside
            refused = refused or error
    raise InputError(f"{name} cannot be built from parts at their defaults") from refused


def _required(function: Callable[..., Any]) -> set[str]:
    return {key for key, p in parameters(function).items() if p.default is inspect.Parameter.empty}


def _weights() -> Array:
    return jnp.full(_PARTIES, 1 / _PARTIES)


def _oracle(size: int) -> Oracle:
    """The shape of a party's objective."""
    def make() -> Oracle:
        return QuadraticOracle(jnp.array(1), jnp.eye(size), jnp.zeros(size), jnp.zeros(()))
    return cast(Oracle, jax.eval_shape(make))


def _states(algorithm: Algorithm, size: int) -> tuple[Any, Any]:
    """The shapes of the server's first state and a party's."""
    def make(oracle: Oracle) -> tuple[Any, Any]:
        w0 = jnp.zeros(size)
        return algorithm.init(w0, _weights()), algorithm.init_party(w0, oracle, jax.random.key(0))
    return cast(tuple[Any, Any], jax.eval_shape(make, _oracle(size)))


def _exchanges(algorithm: Algorithm, size: int) -> tuple[list[Any], list[Any]]:
    """The shapes of every phase's message and reply."""
    server, party = _states(algorithm, size)
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


def _traffic(algorithm: Algorithm) -> tuple[Any, Any, Any]:
    """The shapes of what a large model's party is sent in a round, what it replies, and what it keeps."""
    return *_exchanges(algorithm, _LARGE), _states(algorithm, _LARGE)[1]


def _replies(payload: Any) -> Replies:
    """Everybody's replies, weighing alike."""
    n = len(jax.tree.leaves(payload)[0]) if jax.tree.leaves(payload) else _PARTIES
    return Replies(payload, jnp.full(n, 1 / n), jnp.arange(n), jnp.ones(n, bool), jnp.full(n, 1 / n))


def _filled(shapes: Any, random: np.random.Generator, *rows: int) -> Any:
    """Arbitrary numbers of these shapes; integers and booleans are 1."""
    def fill(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(jax.random.key(0), (*rows, *leaf.shape))
        real = jnp.issubdtype(leaf.dtype, jnp.floating)
        numbers = random.normal(size=(*rows, *leaf.shape)) if real else np.ones((*rows, *leaf.shape))
        return jnp.asarray(numbers, leaf.dtype)
    return jax.tree.map(fill, shapes)


def _differ(a: Any, b: Any) -> bool:
    return any(not np.allclose(x, y, rtol=1e-5, atol=1e-5)
               for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def _numbers(shapes: Any) -> int:
    """How many numbers as wide as the model's that is."""
    width = jnp.zeros(()).dtype.itemsize
    return sum(-(-leaf.size * leaf.dtype.itemsize // width) for leaf in jax.tree.leaves(shapes))


def _amount(shapes: Any) -> Amount:
    n = _numbers(shapes)
    nearest = Fraction(n, _LARGE).limit_denominator(64)
    for models in (Fraction(n // _LARGE), nearest):
        rest = n - models * _LARGE
        if 0 <= rest < _FEW:
            return Amount(float(models), int(rest))
    return Amount(n / _LARGE, 0)
