"""A party's side of a federation: it checks a message, works, stores, and replies.

It does not depend on an engine such as NVIDIA FLARE. These are the messages of the server and the answers to them:

.. code-block:: text

    start      first model, key of the first state     -> ready: numbers of samples; also after a lost state
    work       payload of a phase, key, effort         -> reply: the reply of the phase
    evaluate   what a personal model is computed from  -> scores, if the site lets them out
    finish     the same, at the end                    -> stored: the party has its models

Every message after ``start`` says which of the party's replies counted last and which was refused last. This decides
the party's state. If its last reply counted, the party keeps the state after the work. If the reply was refused, the
party keeps only the ``Private`` parts of that state. If the reply did not arrive in time, the party keeps the state
before the work. A message that arrives again gets the stored reply, so that the party works only once.

The server sends the random key of the work, so that a federation can repeat a simulation. A site with a secret orders
its minibatches itself, see ``own_batches``. For a differentially private algorithm the site has a key of its own, and
its noise comes from the operating system (``Policy.has_secret_noise``), because whoever knows the key can compute the
noise and subtract it. The reply is stored before it is sent, so that no message gets a second reply
with other noise.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from resolvent.algorithms.algorithm import Algorithm, PartyState, Reply
from resolvent.algorithms.combinators.fixed_point_sums import FixedPointSums
from resolvent.algorithms.combinators.prepared import prepare
from resolvent.algorithms.description import Description
from resolvent.algorithms.keys import GENERATOR, key_shape
from resolvent.algorithms.method import algorithm_of_round
from resolvent.algorithms.round import first_party_state
from resolvent.errors import InputError, shorten
from resolvent.federation.protocol.limits import (
    MAX_EPSILON,
    NO_LIMITS,
    Asked,
    Limits,
    Usage,
    check_parts,
    reasons_to_refuse,
    refusal_of_limits,
    scored_splits,
)
from resolvent.federation.protocol.policy import FEDERATION, Policy
from resolvent.federation.protocol.protection import adds_private_noise, has_encoded_vector, protect
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, answer_message
from resolvent.federation.protocol.score_sums import integers_of_scores, names_of_scores
from resolvent.federation.protocol.stores import PartyRecord, PartyStore, StoredAnswers
from resolvent.federation.protocol.wire import (
    Message,
    WireError,
    arrays_of,
    has_valid_numbers,
    size_of,
    with_weak_scalars,
)
from resolvent.federation.secure.answers import SUM_KINDS, integers_of
from resolvent.federation.secure.site import SecureSite
from resolvent.federation.site.budgets import epsilon_of_records
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.own_batches import with_own_batches
from resolvent.federation.site.planned_work import PlannedWork
from resolvent.federation.site.scores import scores_of_model, smallest_split
from resolvent.math import tree
from resolvent.math.system_keys import system_key
from resolvent.math.tree import Vector
from resolvent.problem.metrics.metric import HELD_OUT
from resolvent.problem.models.model import LinearModel, Model
from resolvent.problem.problem import Problem
from resolvent.simulator.checkpoint.identity import fingerprint_of
from resolvent.simulator.engine.evaluate import evaluate_models
from resolvent.simulator.record.party_metrics import PartyMetrics
from resolvent.simulator.storage.tree_files import digest


class Departure(NamedTuple):
    """An array or numbers that leave the site in a run.

    Attributes:
        message: the kind of message, with its phase.
        bytes: size; 8 for each number in the header.
    """

    message: str
    name: str
    bytes: int


class Party:
    """One party of a federation.

    Args:
        algorithm: the algorithm; the server must have the same one.
        problem: the problem of this party alone, with its own samples; its only party has the id 0.
        store: the party's folder for this run.
        rounds: number of rounds of the experiment.
        method: name of the algorithm in the experiment, such as ``fedprox``.
        name: name of the site, as the server knows it.
        limits: what the site allows; default: everything.
        journal: what the site has answered in all experiments; None: it is not counted.
        lead: name of the lead of the plan, for the budgets.
        planned: the messages that the plan contains; None: there is no plan.
        policy: that of the site.
        finished: is called with the personal and the shared model when the run has ended.
        secure: the site's side of secure sums; None: its replies leave as they are.
        metrics: metrics on validation and test samples, in addition to the loss and the score.
        guard: payload of a phase -> raises ``Refusal`` if the reply would tell too much.
        secret: the site's secret, which orders its minibatches and rounds its scores; None: the server's keys do.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> problem = rv.problems.QuadraticProblem.least_squares(jnp.ones((1, 4, 2)), jnp.ones((1, 4)))
        >>> with TemporaryDirectory() as folder, PartyStore(folder + "/run") as store:
        ...     party = Party(rv.fedavg(rv.solvers.GD(0.1)), problem, store, rounds=10)
        ...     [departure.bytes for departure in party.preview() if "reply" in departure.message]
        [8]
    """

    def __init__(self, algorithm: Algorithm, problem: Problem, store: PartyStore, *, rounds: int,
                 method: str = "algorithm", name: str = "party", limits: Limits | None = None,
                 journal: Journal | None = None, lead: str = "", planned: PlannedWork | None = None,
                 policy: Policy = FEDERATION,
                 finished: Callable[[Vector, Vector | None], None] | None = None,
                 metrics: PartyMetrics | None = None, secure: SecureSite | None = None,
                 secret: bytes | None = None,
                 guard: Callable[[Any], None] = lambda payload: None) -> None:
        self.name, self._guard, self._secret, self._sums = name, guard, secret, secure
        self._store, self._limits, self._finished, self._metrics = store, limits or NO_LIMITS, finished, metrics
        self._problem, self._policy, self._method, self._rounds = problem, policy, method, rounds
        self._journal, self._lead, self._planned = journal, lead, planned
        self._answers = StoredAnswers(store.folder)
        self._fingerprint = fingerprint_of(algorithm)
        self._plain_algorithm = algorithm
        self._draws_own_noise = adds_private_noise(algorithm) and policy.has_secret_noise
        self._algorithm, self._description = prepare(with_own_batches(algorithm, secret), problem)
        self._of_work = {"key": jax.eval_shape(jax.random.key_data, key_shape()),
                         "effort": jax.ShapeDtypeStruct((), jnp.result_type(float))}  # type: ignore[no-untyped-call]
        self._obstacle = self._find_obstacle()
        self._record = store.read(self._description.party)
        if journal is not None and self._record is not None and self._record.round >= 0:
            journal.check_reply(self._record.run, self._record.round, self._record.phase)

    def _find_obstacle(self) -> Refusal | None:
        """Why this site does not take part in the experiment."""
        try:
            check_parts(self._plain_algorithm, self._policy)
        except InputError as error:
            return Refusal(RefusalCode.EXPERIMENT, str(error))
        exchanged = (*self._description.messages, *self._description.replies)
        is_exact = bool(jax.tree.leaves(self._description.replies)) and not self.has_noise
        model = getattr(self._problem, "model", None)
        reasons = reasons_to_refuse(self._limits, Asked(
            method=self._method, algorithm=self._plain_algorithm, rounds=self._rounds,
            samples=int(self._problem.sizes[0]), in_a_sum=self._sums is not None,
            parameters=sum(leaf.size for leaf in jax.tree.leaves(self._description.model)) if is_exact else None,
            effort=1.0 if self._planned is None else self._planned.smallest_effort,
            is_network=is_exact and isinstance(model, Model) and not isinstance(model, LinearModel),
            is_encoded=isinstance(self._plain_algorithm, FixedPointSums) or any(map(has_encoded_vector, exchanged))))
        return refusal_of_limits(reasons, self._limits) if reasons else None

    def check(self) -> None:
        """Check the experiment against the site's limits; nothing leaves the site.

        Raises:
            Refusal: the site does not take part; the message has every reason.
        """
        if self._obstacle is not None:
            raise self._obstacle

    @property
    def epsilon(self) -> float | None:
        """The epsilon of each training row after all rounds, at the delta of ``budgets``; None without a bound."""
        samples = int(self._problem.sizes[0])
        return epsilon_of_records(self._plain_algorithm, self._description.model, samples, self._rounds)

    @property
    def has_noise(self) -> bool:
        """Whether the updates leave with noise, whose epsilon is bounded if the algorithm adds it."""
        return bool(self._limits.noise) or (self.epsilon or np.inf) <= MAX_EPSILON

    def preview(self) -> list[Departure]:
        """Everything that would leave the site in a run, by name and size, without values."""
        return list_departures(self._description, self._problem, self._scored, self._metric_names)

    def handle(self, data: bytes | memoryview) -> bytes:
        """Answer a message, see ``answer_message``."""
        return answer_message(data, self.name, self._limits.max_bytes, self._answer)

    def _answer(self, message: Message) -> bytes:
        self.check()
        answers: Mapping[str, Callable[[Message], bytes]] = {
            "start": self._start, "work": self._work, "evaluate": self._evaluate, "finish": self._finish}
        if self._sums is not None and message.kind in SUM_KINDS:
            self._record_of(message)
            return message.answer(SUM_KINDS[message.kind], self.name, self._sums.answer(message))
        if message.kind not in answers:
            raise Refusal(
                RefusalCode.CONFLICT, f"a party has no answer to messages of the kind '{shorten(message.kind)}'")
        return answers[message.kind](message)

    def _start(self, message: Message) -> bytes:
        record = self._record
        if record is not None and record.run != message.run:
            raise Refusal(
                RefusalCode.OTHER_RUN, "this folder of the site belongs to another run: give every run its own")
        restart = position_in(message, "restart")
        if record is None or (restart is not None and record.start != message.identity
                              and (record.round, record.phase) < restart):
            self._check_experiment(message)
            like = {"model": self._description.model, "key": self._of_work["key"]}
            content = self._restored(message, like)
            number = 0 if self._planned is None else self._planned.number_of(content["key"])
            if record is not None and number != record.number:
                raise Refusal(RefusalCode.PLAN, "the party had another number before it lost its state")
            first = first_state(self._algorithm, self._problem, content["model"], content["key"])
            # In an older folder that was restored, phases stay answered: no message gets a second answer.
            position = (-1, 0) if record is None else (record.round, record.phase)
            new = PartyRecord(message.run, message.identity, first, *position, number=number)
            self._record = self._store.write(new, b"")
        elif record.start != message.identity:
            raise Refusal(RefusalCode.CONFLICT, "the run has started with another first model or key")
        sizes = [*self._split_sizes.values()]
        samples = int(self._problem.sizes[0])
        if self._sums is not None:  # the server knows the sums
            samples, sizes = 0, [0] * len(sizes)
        return message.answer("ready", self.name, {
            "samples": samples, "splits": list(self._problem.splits), "split_sizes": sizes,
            "protected": self._limits.clip is not None or self._draws_own_noise, "score": self._problem.score_name,
            **({} if self._sums is None else {"card": self._sums.card()})})

    def _check_experiment(self, message: Message) -> None:
        expected = {"algorithm": self._fingerprint, "precision": jnp.result_type(float).name, "rounds": self._rounds}
        different = [name for name, value in expected.items() if message.facts.get(name) != value]
        if different:
            raise Refusal(
                RefusalCode.CONFLICT, f"the experiment of the server has another {', '.join(different)} than that of "
                "the site: use the same experiment and the same version of resolvent")

    def _work(self, message: Message) -> bytes:
        record, position = self._record_of(message), (message.round, message.phase)
        if record.message == message.identity:
            return self._store.read_reply()
        if position == (record.round, record.phase):
            raise Refusal(
                RefusalCode.CONFLICT, "this phase of the round has been answered, and the message has another content")
        if position < (record.round, record.phase):
            raise Refusal(
                RefusalCode.OLD, f"the message is of round {message.round + 1}, this party is in {record.round + 1}")
        if message.phase >= len(self._description.messages) or message.round >= self._rounds:
            raise Refusal(
                RefusalCode.PLAN, f"the plan has no round {message.round + 1} with phase {message.phase + 1}")
        like = {"payload": self._description.messages[message.phase], **self._of_work}
        content = self._restored(message, like)
        if not 0 <= content["effort"] <= 1:
            raise Refusal(RefusalCode.CONFLICT, "the effort is outside [0, 1]")
        if self._planned is not None:
            self._planned.check_work(*position, record.number, content["key"], float(content["effort"]))
        self._guard(content["payload"])
        sums = self._sums if jax.tree.leaves(self._description.replies) else None
        if sums is not None:
            sums.check(message, None if self._planned is None else self._planned.working_sites(message.round))
        is_new_round = message.round > record.round
        self._count(Usage(rounds=int(is_new_round), replies=1), "reply", message, message.identity)
        before = state_after(record, message)
        payload = with_weak_scalars(content["payload"], like["payload"])
        key = system_key() if self._draws_own_noise else jax.random.wrap_key_data(content["key"], impl=GENERATOR)
        after, reply = party_step(self._algorithm, self._problem, before, payload, key, content["effort"],
                                   np.int32(message.round), phase=message.phase)
        if self._limits.clip is not None:
            reply = protect(reply, content["payload"], self._algorithm, self._limits.clip, self._limits.noise)
        facts, arrays = ({}, arrays_of(reply)) if sums is None else sums.hide(message, integers_of(reply))
        sent = message.answer("reply", self.name, facts, arrays)
        worked = record._replace(committed=before, round=message.round, phase=message.phase, message=message.identity,
                                 pending=after)
        self._record = self._store.write(worked, sent)  # if the disk is full, the party keeps its state before the work
        return sent

    def _count(self, needed: Usage, kind: str, message: Message, identity: str) -> None:
        """Write an answer to the journal before it is computed; a message that arrives again is not counted again."""
        journal, limits = self._journal, self._limits
        if journal is None:
            return
        facts = {"run": message.run, "round": message.round, "phase": message.phase, "message": identity,
                 "payload": digest(dict(message.arrays))}
        if journal.has(kind, **facts):
            return
        if reasons := reasons_to_refuse(limits, Asked(
                sites=None if self._planned is None else len(self._planned.membership.sites), needed=needed,
                scored_rows=smallest_split(self._split_sizes, limits.min_cell), in_a_sum=self._sums is not None,
                used=journal.used(self._lead))):
            raise refusal_of_limits(reasons, limits)
        journal.append(kind, **facts)

    def _evaluate(self, message: Message) -> bytes:
        if not self._scored and self._sums is None:
            return message.answer("scores", self.name, {"withheld": True})
        if (stored := self._answers.find("scores", message)) is not None:
            return stored
        if self._planned is not None:
            self._planned.check_evaluation(message.round)
        choose, shared = self._models(message)
        if self._sums is not None:
            self._sums.check(message, None if self._planned is None else self._planned.membership.sites)
        self._count_scores(message)
        scores = scores_of_model(self._problem, choose(self._problem), self._metrics, self._limits.min_cell,
                                 self._scored, self._secret, choose if self._description.uses_held_out else None)
        facts: dict[str, Any] = {"withheld": False, "personal": scores, "shared": None}
        if shared is not None:
            facts["shared"] = (scores if self._description.uses_shared_model
                               else scores_of_model(self._problem, shared, self._metrics, self._limits.min_cell,
                                                    self._scored, self._secret))
        arrays = dict[str, Any]()
        if self._sums is not None:
            names = names_of_scores(self._problem.score_name, self._metric_names)
            models = [facts[name] for name in ("personal", "shared") if facts[name] is not None]
            facts, arrays = self._sums.hide(message, integers_of_scores(models, names, self._problem.splits))
        sent = message.answer("scores", self.name, facts, arrays)
        return self._answers.write("scores", message, sent)

    def _finish(self, message: Message) -> bytes:
        if (stored := self._answers.find("stored", message)) is not None:
            return stored
        if self._planned is not None:
            self._planned.check_finish(message.round)
        # The judgement at the end is of these models, and no others.
        if self._scored and (self._planned is None or self._planned.fold in (None, 0)):
            self._count_scores(message)
        choose, shared = self._models(message)
        personal, record = choose(self._problem), self._record_of(message)
        self._record = self._store.write(record._replace(committed=state_after(record, message), pending=None),
                                         self._store.read_reply())
        self._store.write_models(personal, shared, message.round)
        if self._finished is not None:
            self._finished(personal, shared)
        sent = message.answer("stored", self.name)
        return self._answers.write("stored", message, sent)

    def _count_scores(self, message: Message) -> None:
        """Count the scores of a state, once: those during the run and the judgement at its end are of the same state.

        Raises:
            Refusal: another state after these rounds has been scored, or the budget is used up.
        """
        self._count(Usage(scores=1), "scores", message, digest(dict(message.arrays)))

    def _models(self, message: Message) -> tuple[Callable[[Problem], Vector], Vector | None]:
        """After the replies that counted: problem with the party's samples -> personal model; and the shared model."""
        record = self._record_of(message)
        like = {"payload": self._description.model_message, "shared": self._description.shared}
        content = self._restored(message, like)
        payload = with_weak_scalars(content["payload"], like["payload"])
        return partial(personal_model, self._algorithm, state_after(record, message), payload), content["shared"]

    @property
    def _split_sizes(self) -> dict[str, int]:
        return {split: int(self._problem.split_sizes(i)[0]) for i, split in enumerate(self._problem.splits)}

    @property
    def _scored(self) -> tuple[str, ...]:
        """The splits of which the site lets scores out."""
        splits = scored_splits(self._limits, self._plain_algorithm, self._problem.splits)
        return tuple(s for s in splits if s != "validation" or not self._description.trains_on_held_out)

    @property
    def _metric_names(self) -> tuple[str, ...]:
        return () if self._metrics is None else tuple(self._metrics.metrics)

    def _record_of(self, message: Message) -> PartyRecord:
        """The record. It must belong to this run and include every reply that the server has received."""
        record = self._record
        if record is None:
            raise Refusal(RefusalCode.LOST_STATE, "the party has not started this run, or has lost its folder")
        if record.run != message.run:
            raise Refusal(RefusalCode.OTHER_RUN, "the message is of another run")
        positions = [position_in(message, name) for name in ("counted", "refused")]
        if any(position is not None and position > (record.round, record.phase) for position in positions):
            raise Refusal(
                RefusalCode.LOST_STATE, "the party's folder is older than a reply that the server has had from it")
        return record

    def _restored(self, message: Message, like: Mapping[str, PyTree[Any]]) -> dict[str, Any]:
        content: dict[str, Any] = message.tree(dict(like))
        if not has_valid_numbers(content):
            raise Refusal(RefusalCode.DAMAGED, "the message has numbers that are not finite")
        return content


def list_departures(description: Description, problem: Problem, scored: Sequence[str],
                    metrics: Sequence[str]) -> list[Departure]:
    """Everything that would leave the site, without values."""
    counted = dict.fromkeys(("training", *("training" if split == "train" else split for split in problem.splits)))
    departures = [Departure("ready", f"number of {name} samples", 8) for name in counted]
    for phase, reply in enumerate(description.replies):
        title = f"reply of phase {phase + 1}, every round"
        departures += [Departure(title, name, size) for name, size in size_of(reply).items()]
    if not scored:
        return departures
    scores = jax.eval_shape(lambda w: evaluate_models(problem, tree.stack(w, 1), jnp.zeros(1, int)), description.model)
    held_out = tuple(split for split in HELD_OUT if split in scored)
    measured = (([*scores], scored), ([*metrics], held_out))
    models = ("personal",) if description.shared is None else ("personal", "shared")
    return departures + [
        Departure("scores, every evaluation", f"{', '.join(names)} on {', '.join(of_splits)} of the {model} model",
                  8 * len(names) * len(of_splits))
        for model in models for names, of_splits in measured if names and of_splits]


_ZERO = np.int32(0)  # the party's own problem has one party


@jax.jit
def first_state(algorithm: Algorithm, problem: Problem, w0: Vector, key: Array) -> PartyState:
    """The party's state before the first round."""
    oracle = problem.at(jnp.array(0)).oracle(jnp.asarray(_ZERO))
    return first_party_state(algorithm, w0, oracle, jax.random.wrap_key_data(key, impl=GENERATOR))


@partial(jax.jit, static_argnames="phase")
def party_step(algorithm: Algorithm, problem: Problem, state: PartyState, payload: PyTree[Any], key: Array,
               effort: Float[Array, ""], t: Int[Array, ""], *, phase: int) -> tuple[PartyState, Reply]:
    """The party's state after its work in a phase of round t, and its reply."""
    oracle = problem.at(t).oracle(jnp.asarray(_ZERO))
    after, reply, _ = algorithm_of_round(algorithm, t).phases[phase].party(
        state, payload, oracle, key, effort)
    return jax.tree.map(lambda new, old: new.astype(old.dtype), after, state), reply


@jax.jit
def personal_model(algorithm: Algorithm, state: PartyState, payload: PyTree[Any], problem: Problem) -> Vector:
    """The model that the party uses."""
    return algorithm.personal_model(state, payload, problem.oracle(jnp.asarray(_ZERO)))


def position_in(message: Message, name: str) -> tuple[int, int] | None:
    """The round and phase of the party's last reply that counted, or was refused; None without any."""
    value = message.facts.get(name)
    if value is None:
        return None
    if not (isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value)):
        raise WireError(f"the message has no round and phase for {name}")
    return value[0], value[1]


def state_after(record: PartyRecord, message: Message) -> PartyState:
    """The party's state. It depends on whether its last reply counted, which the message says."""
    return record.settled(position_in(message, "counted"), position_in(message, "refused"))
