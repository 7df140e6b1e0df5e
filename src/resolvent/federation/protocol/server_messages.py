"""The messages that the server writes, and how it reads the answers: nothing in an answer is trusted."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from resolvent.algorithms import keys
from resolvent.algorithms.admission import update_norm
from resolvent.algorithms.algorithm import Algorithm, ServerState
from resolvent.algorithms.algorithm import Message as Payload
from resolvent.algorithms.method import algorithm_of_round
from resolvent.federation.protocol.events import SiteScores
from resolvent.federation.protocol.stores import ServerRecord
from resolvent.federation.protocol.wire import EncodedMessage, Message, WireError, arrays_of, share_equal
from resolvent.math.tree import Vector

__all__ = ["Ready", "Scores", "model_messages", "norm_of_reply", "read_ready", "read_scores", "start_messages",
           "work_messages"]

_MAX_SPLITS = 100
_MAX_SCORES = 1000
_MAX_NAME = 200


class Ready(NamedTuple):
    """A party's answer to the first message.

    Attributes:
        splits: names of the sample sets.
        split_sizes: number of samples of each sample set.
        protected: whether the site clips its replies or adds noise.
        card: the site's public keys for secure sums; None without them.
    """

    samples: int
    splits: tuple[str, ...]
    split_sizes: tuple[int, ...]
    protected: bool
    score: str
    card: Mapping[str, Any] | None = None


class Scores(NamedTuple):
    """A party's answer about its models.

    Attributes:
        personal: name of a score -> split -> its value; None if the scores do not leave the site. A value is None if
            it is not finite.
        shared: the same for the shared model; None if there is none.
    """

    personal: SiteScores | None
    shared: SiteScores | None


def start_messages(run: str, ids: Mapping[str, int], model: Vector, seed: int, experiment: Mapping[str, Any],
                   restart: tuple[int, int] | None = None) -> dict[str, EncodedMessage]:
    """The first message to each of some parties: the first model, and the key of its first state.

    Args:
        ids: name of a party -> its id.
        experiment: facts in which the experiments of the server and of the party must agree.
        restart: the round and phase in which a party that has lost its state begins again; None: the run begins.
    """
    initial, known, messages = keys.initial_key(seed), arrays_of({"model": model}), dict[str, EncodedMessage]()
    for name, k in ids.items():
        key = jax.random.key_data(keys.initial_party_key(initial, jnp.array(k)))
        facts = {**experiment, "party": name} | ({} if restart is None else {"restart": restart})
        messages[name] = EncodedMessage(Message("start", run, facts=facts, arrays=known | arrays_of({"key": key})))
    return messages


def work_messages(algorithm: Algorithm, record: ServerRecord, efforts: Mapping[int, Any], root: Array,
                  asked: Sequence[str] | None = None) -> dict[str, EncodedMessage]:
    """The message of a phase to each of some parties, or the one that it has not answered.

    Args:
        efforts: id of a party -> its effort.
        root: the key of the run.
        asked: with secure sums, the sites that are asked.
    """
    facts, known, messages = _facts(record, efforts, asked), arrays_of(record.state), dict[str, EncodedMessage]()
    for k, effort in efforts.items():
        t = record.unanswered.get(k, record.round)
        payload, key = _phase_payload(algorithm, record.state, jnp.array(k), root, t, phase=record.phase)
        arrays = share_equal(arrays_of({"payload": payload, "key": key, "effort": effort}), known)
        del payload
        known = arrays | known
        messages[record.parties[k]] = EncodedMessage(Message("work", record.run, t, record.phase, facts[k], arrays))
    return messages


def model_messages(kind: str, algorithm: Algorithm, record: ServerRecord, parties: Iterable[int],
                   asked: Sequence[str] | None = None) -> dict[str, EncodedMessage]:
    """The messages from which parties compute their personal models, of the kind ``evaluate`` or ``finish``.

    Args:
        parties: ids of the parties.
        asked: with secure sums, the sites that are asked for their scores.
    """
    facts, known, messages = _facts(record, parties, asked), arrays_of(record.state), dict[str, EncodedMessage]()
    for k, of_party in facts.items():
        arrays = dict[str, Any]()
        for name, compute in (("payload", _model_payload), ("shared", _shared_model)):  # one copy of a model at a time
            arrays |= share_equal(arrays_of({name: compute(algorithm, record.state, jnp.array(k))}), known | arrays)
        known = arrays | known
        messages[record.parties[k]] = EncodedMessage(Message(kind, record.run, record.round, 0, of_party, arrays))
    return messages


def _facts(record: ServerRecord, parties: Iterable[int], asked: Sequence[str] | None) -> dict[int, dict[str, Any]]:
    """Id of a party -> its name, and the positions of its last replies that counted and that were refused."""
    common = {} if asked is None else {"asked": sorted(asked)}
    return {k: {"party": record.parties[k], "counted": record.counted.get(k), "refused": record.refused.get(k),
                **common} for k in parties}


def read_ready(message: Message) -> Ready:
    """Read the answer to a message of ``start_messages``."""
    splits, sizes = message.fact("splits", list), message.fact("split_sizes", list)
    samples = message.fact("samples", int)
    if not (0 < len(splits) <= _MAX_SPLITS and len(sizes) == len(splits) and all(map(_is_name, splits))
            and all(type(n) is int and 0 <= n < 2**31 for n in [*sizes, samples])):
        raise WireError("the numbers of samples are not valid")
    score = message.fact("score", str)
    if not _is_name(score):
        raise WireError("the name of the score is not valid")
    card = message.facts.get("card")
    return Ready(samples, tuple(splits), tuple(sizes), message.fact("protected", bool), score,
                 card if isinstance(card, dict) else None)


def read_scores(message: Message, splits: Sequence[str]) -> Scores:
    """Read the answer to a message of the kind ``evaluate``."""
    if message.fact("withheld", bool):
        return Scores(None, None)
    has_shared = message.facts.get("shared") is not None
    return Scores(_valid_scores(message.fact("personal", dict), splits),
                  _valid_scores(message.fact("shared", dict), splits) if has_shared else None)


def _valid_scores(scores: Mapping[str, Any], splits: Sequence[str]) -> SiteScores:
    def is_number(value: Any) -> bool:
        return value is None or (type(value) in (int, float) and math.isfinite(value))

    is_valid = len(scores) <= _MAX_SCORES and all(
        _is_name(name) and isinstance(values, dict) and {*values} <= {*splits} and all(map(is_number, values.values()))
        for name, values in scores.items())
    if not is_valid:
        raise WireError("the scores are not valid")
    return {name: dict(values) for name, values in scores.items()}


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME and value.isprintable()


@partial(jax.jit, static_argnames="phase")
def _phase_payload(algorithm: Algorithm, state: ServerState, k: Int[Array, ""], root: Array, t: int, *,
                   phase: int) -> tuple[Payload, Array]:
    key = keys.party_key(keys.phase_key(keys.round_key(root, jnp.asarray(t)), phase), k)
    of_round = algorithm_of_round(algorithm, jnp.asarray(t))
    return of_round.phases[phase].message(state, k), jax.random.key_data(key)


@partial(jax.jit, static_argnames="phase")
def norm_of_reply(algorithm: Algorithm, state: ServerState, t: int, k: int, reply: PyTree[Any], *,
                  phase: int) -> Float[Array, ""]:
    """The norm of the update of party k in round t; ``state`` is the server's, from which the message was made."""
    of_round = algorithm_of_round(algorithm, jnp.asarray(t))
    return update_norm(of_round, of_round.phases[phase].message(state, jnp.asarray(k)), reply, phase)


@jax.jit
def _model_payload(algorithm: Algorithm, state: ServerState, k: Int[Array, ""]) -> Payload:
    return algorithm.model_message(state, k)


@jax.jit
def _shared_model(algorithm: Algorithm, state: ServerState, k: Int[Array, ""]) -> Vector | None:
    return algorithm.server_model(state)
