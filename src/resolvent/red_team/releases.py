"""What a plan releases at a site: its replies to a server, through the messages of a federation.

The other sites are copies of this one, so that the models that the server sends are those of this site's rows alone: no
other site hides anything in a sum. The replies are those that leave: within the limits, clipped and with noise.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from resolvent.algorithms import keys
from resolvent.algorithms import round as rounds
from resolvent.algorithms.algorithm import Algorithm, ServerState
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.combinators.prepared import Prepared, prepare
from resolvent.algorithms.method import algorithm_of_round, update_origin
from resolvent.federation.protocol.protection import protect
from resolvent.federation.protocol.server_messages import read_ready, start_messages, work_messages
from resolvent.federation.protocol.stores import ServerRecord
from resolvent.federation.protocol.wire import EncodedMessage, Message, checked_kind, decode
from resolvent.federation.site.party import first_state, party_step
from resolvent.federation.site.site_run import SiteRun
from resolvent.math import tree
from resolvent.math.codecs import Wire
from resolvent.math.system_keys import system_key
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.simulator.checkpoint.identity import fingerprint_of

__all__ = ["Release", "model_of", "released_replies", "trained_model"]

_RUN = "attack"
Ask = Callable[[ServerRecord, Array], PyTree[Any]]
"""(the server's record, key of the round) -> the reply of the site."""


class Release(NamedTuple):
    """A reply that leaves the site, and what the server knows about it.

    Attributes:
        round: number of the round, from 0.
        message: the payload that the server has sent.
        update: the reply minus the model that was sent, if replies are models.
        key: the key of the local work, which the server sends.
    """

    round: int
    phase: int
    message: PyTree[Any]
    reply: PyTree[Any]
    update: PyTree[Any]
    key: Array
    state: ServerState


def released_replies(run: SiteRun, name: str, number: int, sites: int) -> Iterator[Release]:
    """The replies of a method in all of its rounds; nothing if the method sends none.

    Raises:
        WireError: the site refuses a message; the text has the code of the refusal.
    """
    experiment, label, problem = run.plan, run.plan.labels[number], run.problem
    prepared = prepare(experiment.algorithm(label), problem.model.init)
    if not jax.tree.leaves(prepared.description.replies):
        return
    handle = [*run.handlers.values()][number]

    def answer(messages: Mapping[str, EncodedMessage], kind: str) -> Message:
        return checked_kind(decode(handle(bytes(messages[name]))), kind)

    model = jax.jit(problem.model.init)(keys.initial_key(experiment.seed))
    facts = {"algorithm": fingerprint_of(experiment.algorithm(label)), "precision": jnp.result_type(float).name,
             "rounds": experiment.rounds_of(label)}
    read_ready(answer(start_messages(_RUN, {name: 0}, model, experiment.seed, facts), "ready"))

    def ask(record: ServerRecord, round_key: Array) -> PyTree[Any]:
        work = work_messages(prepared.algorithm, record, {0: jnp.ones(())}, keys.root_key(experiment.seed))
        return answer(work, "reply").tree(prepared.description.replies[record.phase])

    yield from _rounds(prepared, model, name, int(problem.sizes[0]), experiment.seed, sites,
                       experiment.rounds_of(label), ask)


def trained_model(algorithm: Algorithm, problem: LearningProblem, *, rounds: int, seed: int, sites: int,
                  draws_own_noise: bool, clip: float | None, noise: float) -> Vector | None:
    """The last model that a site with these rows releases; None if it releases none.

    It is computed as by ``released_replies``, without messages and files, for the many models of shadow sites.

    Args:
        draws_own_noise: whether the site's random numbers come from the operating system.
        clip: see ``Limits``.
        noise: see ``Limits``.
    """
    prepared = prepare(algorithm, problem)
    if not jax.tree.leaves(prepared.description.replies):
        return None
    model = jax.jit(problem.model.init)(keys.initial_key(seed))
    first_key = keys.initial_party_key(keys.initial_key(seed), jnp.array(0))
    state = first_state(prepared.algorithm, problem, model, jax.random.key_data(first_key))

    def ask(record: ServerRecord, round_key: Array) -> PyTree[Any]:
        nonlocal state
        message, key = _payload(prepared.algorithm, record.state, round_key, record.round, phase=record.phase)
        key = system_key() if draws_own_noise else key
        state, reply = party_step(prepared.algorithm, problem, state, message, key, jnp.ones(()),
                                  np.int32(record.round), phase=record.phase)
        return reply if clip is None else protect(reply, message, prepared.algorithm, clip, noise)

    *_, last = _rounds(prepared, model, "shadow", int(problem.sizes[0]), seed, sites, rounds, ask)
    return model_of(prepared, last)


def model_of(prepared: Prepared, release: Release) -> Vector | None:
    """The model that a release shows: the reply, if it is one, otherwise the shared model of the server."""
    model = prepared.description.model
    is_model = jax.tree.structure(release.reply) == jax.tree.structure(model)  # type: ignore[operator]
    if is_model and prepared.algorithm.replies_models:
        return release.reply
    return prepared.algorithm.server_model(release.state)


def _rounds(prepared: Prepared, model: Vector, name: str, samples: int, seed: int, sites: int, count: int,
            ask: Ask) -> Iterator[Release]:
    """The rounds of a server whose sites all send the reply of one of them."""
    algorithm, description = prepared
    shares = jnp.full(sites, 1 / sites)
    state = jax.jit(rounds.initial_server)(algorithm, model, shares)
    record = ServerRecord(_RUN, (name,), {}, (samples,), (), (), "", state)
    cohort = Cohort.from_parties(jnp.arange(sites), shares)
    for t in range(count):
        round_key = keys.round_key(keys.root_key(seed), jnp.asarray(t))
        for phase in range(len(description.messages)):
            record = record._replace(round=t, phase=phase)
            message, key = _payload(algorithm, record.state, round_key, t, phase=phase)
            reply = ask(record, round_key)
            state = _next_state(algorithm, record.state, tree.stack(reply, sites), cohort, round_key, t, phase=phase)
            decoded = tree.map_parts(Wire.decoded, reply, Wire)
            decoded, origin = eqx.filter((decoded, update_origin(algorithm, message, decoded, phase)),
                                         eqx.is_inexact_array)
            yield Release(t, phase, message, decoded, tree.sub(decoded, origin), key, state)
            record = record._replace(state=state, counted={0: (t, phase)})


@partial(jax.jit, static_argnames="phase")
def _payload(algorithm: Algorithm, state: ServerState, round_key: Array, t: int, *,
             phase: int) -> tuple[PyTree[Any], Array]:
    key = keys.party_key(keys.phase_key(round_key, phase), jnp.array(0))
    return algorithm_of_round(algorithm, jnp.asarray(t)).phases[phase].message(state, jnp.array(0)), key


@partial(jax.jit, static_argnames="phase")
def _next_state(algorithm: Algorithm, state: ServerState, stacked: PyTree[Any], cohort: Cohort, round_key: Array,
                t: int, *, phase: int) -> ServerState:
    replies = rounds.stacked_replies(stacked, cohort, cohort.alive)
    key = keys.server_key(keys.phase_key(round_key, phase))
    return rounds.server_step(algorithm_of_round(algorithm, jnp.asarray(t)), phase, state, replies, key)[0]
