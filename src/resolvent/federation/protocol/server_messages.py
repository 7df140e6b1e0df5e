"""The messages that the server writes, and how it reads the answers: nothing in an answer is trusted."""

import math
from collections.abc import Mapping, Sequence
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
from resolvent.federation.protocol.wire import EncodedMessage, Message, WireError, arrays_of, restore_tree, share_equal
from resolvent.math.tree import Vector

__all__ = ["Ready", "Scores", "check_kind", "model_message", "norm_of_reply", "read_ready", "read_reply", "read_scores",
           "read_stored", "start_message", "work_message"]

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


def start_message(run: str, party: str, model: Vector, key: Array, experiment: Mapping[str, Any],
                  restart: tuple[int, int] | None = None, like: EncodedMessage | None = None) -> EncodedMessage:
    """The first message to a party: the first model, and the key of its first state.

    Args:
        experiment: facts in which the experiments of the server and of the party must agree.
        restart: the round and phase in which a party that has lost its state begins again; None: the run begins.
        like: an earlier message, with which it shares equal arrays.
    """
    arrays = arrays_of({"model": model, "key": jax.random.key_data(key)})
    facts = {**experiment, "party": party} | ({} if restart is None else {"restart": restart})
    return EncodedMessage(Message("start", run, facts=facts, arrays=arrays), like)


def work_message(algorithm: Algorithm, record: ServerRecord, k: int, effort: Any, root: Array,
                 asked: Sequence[str] | None = None, like: EncodedMessage | None = None) -> EncodedMessage:
    """The message of a phase to party k, or the one that it has not answered.

    With secure sums it names the asked sites. ``root`` is the key of the run, ``like`` an earlier message.
    """
    t = record.unanswered.get(k, record.round)
    payload, key = _phase_payload(algorithm, record.state, jnp.array(k), root, t, phase=record.phase)
    arrays = share_equal(arrays_of({"payload": payload, "key": key, "effort": effort}), arrays_of(record.state))
    del payload
    facts = _facts(record, k) | ({} if asked is None else {"asked": sorted(asked)})
    return EncodedMessage(Message("work", record.run, t, record.phase, facts, arrays), like)


def model_message(kind: str, algorithm: Algorithm, record: ServerRecord, k: int,
                  asked: Sequence[str] | None = None, like: EncodedMessage | None = None) -> EncodedMessage:
    """The message from which party k computes its personal model, of the kind ``evaluate`` or ``finish``.

    With secure sums it names the sites that are asked for their scores. ``like`` is an earlier message.
    """
    of_state, arrays = arrays_of(record.state), dict[str, Any]()
    for name, compute in (("payload", _model_payload), ("shared", _shared_model)):  # one copy of a model at a time
        arrays |= share_equal(arrays_of({name: compute(algorithm, record.state, jnp.array(k))}), of_state | arrays)
    facts = _facts(record, k) | ({} if asked is None else {"asked": sorted(asked)})
    return EncodedMessage(Message(kind, record.run, record.round, 0, facts, arrays), like)


def _facts(record: ServerRecord, k: int) -> dict[str, Any]:
    """The receiver of a message, and the positions of its last replies that counted and that were refused."""
    return {"party": record.parties[k], "counted": record.counted.get(k), "refused": record.refused.get(k)}


def read_ready(party: str, message: Message) -> Ready:
    """Read the answer to ``start_message``."""
    check_kind(message, "ready")
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


def read_reply(party: str, message: Message, like: PyTree[Any]) -> PyTree[Any]:
    """Read the answer to ``work_message``."""
    check_kind(message, "reply")
    return restore_tree(message.arrays, like)


def read_scores(party: str, message: Message, splits: Sequence[str]) -> Scores:
    """Read the answer to a ``model_message`` of the kind ``evaluate``."""
    check_kind(message, "scores")
    if message.fact("withheld", bool):
        return Scores(None, None)
    has_shared = message.facts.get("shared") is not None
    return Scores(_valid_scores(message.fact("personal", dict), splits),
                  _valid_scores(message.fact("shared", dict), splits) if has_shared else None)


def read_stored(party: str, message: Message) -> bool:
    """Read the answer to a ``model_message`` of the kind ``finish``."""
    check_kind(message, "stored")
    return True


def check_kind(message: Message, kind: str) -> None:
    """Check that an answer is of the expected kind."""
    if message.kind != kind:
        raise WireError(f"the answer is not of the kind '{kind}'")


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
