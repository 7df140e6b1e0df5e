"""The server's side of a federation: it asks parties, checks their replies, makes the server's step, and stores it.

It does not depend on an engine such as NVIDIA FLARE. The server's record is written to disk after every phase, before
any message tells a party whether its reply counted. A run can therefore be interrupted anywhere: the coordinator
repeats the same bytes for what was not stored, and parties that have done the work send their stored replies.

If the algorithm protects parties, neither the server's noise nor its cohorts come from the seed, which all participants
know. The operating system draws the noise of each step, and the state after the step is stored before anything of it
leaves: a step that is repeated after an interruption has other noise, and no state with the first noise was released.
The cohorts are drawn with a secret that is stored with the run, so that a resumed run has the same cohorts.
"""

import copy
import gc
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from resolvent.algorithms import keys
from resolvent.algorithms.algorithm import Algorithm, Replies, Reply, ServerState
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.combinators.asynchronous import Asynchronous, AsynchronousState
from resolvent.algorithms.combinators.combinator import contains
from resolvent.algorithms.combinators.prepared import prepare
from resolvent.algorithms.method import algorithm_of_round
from resolvent.algorithms.participation.rules import Full, Participation
from resolvent.algorithms.round import CollectedReplies, collect_replies, initial_server, server_step, working_parties
from resolvent.errors import InputError, shorten
from resolvent.federation.protocol import events
from resolvent.federation.protocol.exchange import (
    Answers,
    FederationRefusedError,
    FederationStoppedError,
    RoundRules,
    exchange,
)
from resolvent.federation.protocol.limits import check_parts
from resolvent.federation.protocol.policy import FEDERATION, Policy
from resolvent.federation.protocol.protection import protects_parties
from resolvent.federation.protocol.refusals import reasons_of_sites
from resolvent.federation.protocol.score_sums import count_of_scores, mean_scores_of, names_of_scores
from resolvent.federation.protocol.server_messages import (
    Ready,
    Scores,
    model_messages,
    norm_of_reply,
    read_ready,
    read_scores,
    start_messages,
    work_messages,
)
from resolvent.federation.protocol.stores import ServerRecord, ServerStore
from resolvent.federation.protocol.transport import Transport
from resolvent.federation.protocol.wire import EncodedMessage, Message
from resolvent.federation.secure.answers import count_of
from resolvent.federation.secure.rules import SumRules
from resolvent.federation.server.membership import (
    change_members,
    check_change_of_members,
    draw_cohort,
    members_of_round,
)
from resolvent.federation.server.record_metrics import metrics_of_reports
from resolvent.federation.server.secure_phases import SecurePhases, check_summed, read_masked
from resolvent.math.system_keys import SYSTEM_KEY_BYTES, system_key
from resolvent.math.tree import Vector
from resolvent.problem.problem import Problem
from resolvent.simulator.checkpoint.identity import digest_of_code, fingerprint_of, versions_of_code
from resolvent.simulator.plan import plan_evaluation
from resolvent.simulator.storage.tree_files import digest
from resolvent.simulator.task import check_sizes

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Coordinator"]

_LOST = "it has lost its state"
_Value = TypeVar("_Value")


class FederationResult(NamedTuple):
    """The end of a run.

    Attributes:
        state: the server's state.
        shared: the shared model; None if the algorithm has none.
        metrics: a table with the columns of the metrics of ``simulate``: scores, replies and refused replies.
        reports: all reports of the run, in order.
        record: the server's record: numbers of samples, bytes in both directions, parties that restarted.
    """

    state: ServerState
    shared: Vector | None
    metrics: "pd.DataFrame"
    reports: tuple[events.Event, ...]
    record: ServerRecord


class Coordinator:
    """The server's loop.

    Args:
        algorithm: the algorithm; the parties must have the same one.
        source: the problem; or a model's ``init``, random key -> first model.
        transport: sends messages to the parties. If its parties are not those of the stored run, parties join and
            leave from the next round on, see ``membership``.
        store: the server's folder. A run that is stored in it is resumed.
        rounds: number of rounds, at least 1.
        seed: seed of all random numbers, as in ``simulate``, but not of the cohorts and the noise of an algorithm that
            protects parties, see ``policy``.
        participation: draws the cohort of each round. With the default ``rules``, the run repeats that of ``simulate``.
        evaluate_every: rounds between evaluations; default: as in ``simulate``.
        rules: quorum and times.
        method: name of the algorithm in the metrics.
        lost_state: what happens to a party that has lost its state: it is no longer asked (``refuse``), or it starts
            with a first state (``restart``). If the algorithm has no party states, the party continues in both cases.
        policy: that of the server.
        run: name of a new run in all of its messages; default: a random one.
        secure: of how many sites a secure sum must consist; None: the server sees replies, sizes and scores of a site.
        samples: for secure sums of replies that sites weigh by their samples, the number of training samples of all.
        metrics: for secure sums, names of the metrics that the sites add to the loss and the score.
        reported: site -> name of a sample set -> the number of its samples, as the site has reported and signed it; a
            site that starts with another number is refused. Empty: they are not known before.
        has_scores: whether models are evaluated; not those of folds, which are judged together at the end.
        has_ended: (the server's state) -> whether the run ends before ``rounds``; such a run has no evaluations.

    Raises:
        InputError: the arguments do not fit together.
    """

    def __init__(self, algorithm: Algorithm, source: Problem | Callable[[Array], Vector], transport: Transport,
                 store: ServerStore, *, rounds: int, seed: int = 0, participation: Participation | None = None,
                 evaluate_every: int | None = None, rules: RoundRules | None = None, method: str = "algorithm",
                 lost_state: Literal["refuse", "restart"] = "refuse", policy: Policy = FEDERATION,
                 run: str | None = None, secure: SumRules | None = None, samples: int | None = None,
                 metrics: Sequence[str] = (), reported: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
                 has_scores: bool = True,
                 has_ended: Callable[[ServerState], bool] | None = None) -> None:
        check_parts(algorithm, policy)
        if rounds < 1:
            raise InputError(f"rounds={rounds} must be at least 1")
        self._transport, self._store, self._rounds, self._seed = transport, store, rounds, seed
        self._rules, self._method, self._lost_state = rules or RoundRules(), method, lost_state
        self._participation = Full() if participation is None else participation
        self._participation.check(len(transport.parties))
        algorithm.check_participation(self._participation, len(transport.parties))
        self._secure = None if secure is None else SecurePhases(transport, store, self._rules, secure)
        self._protects = protects_parties(algorithm) and policy.has_secret_noise
        self._algorithm, self._description = prepare(algorithm, source)
        self._has_party_states, self._root = self._description.has_party_states, keys.root_key(seed)
        self._working = jax.jit(working_parties)
        self._sums_replies = self._secure is not None and bool(jax.tree.leaves(self._description.replies))
        if self._sums_replies:
            samples = check_summed(algorithm, samples)
        self._samples, self._metrics, self._policy = samples, tuple(metrics), policy
        init = source.init if isinstance(source, Problem) else source
        self._init: Callable[[Array], Vector] = jax.jit(lambda key: init(key))  # methods have no hash
        self._every = plan_evaluation(
            algorithm, rounds=rounds, cohort=self._participation.capacity(len(transport.parties)), every=evaluate_every,
            parties=np.arange(len(transport.parties), dtype=np.int32), diagnostics=(), clock=None).every
        facts = {"algorithm": fingerprint_of(algorithm), "precision": jnp.result_type(float).name}
        self._experiment = {**facts, "rounds": rounds}
        self._late = LateReplies(self._algorithm, self._participation, self._rules)
        self._identity = {**facts, "participation": fingerprint_of(self._participation), "seed": str(seed),
                          "model": fingerprint_of(jax.tree.map(np.asarray, self._first_model()))}
        if code := digest_of_code((algorithm, source, self._participation)):  # where the policy allows any part
            self._identity |= {"code": code, **{f"version of {name}": v for name, v in versions_of_code().items()}}
        self._run, self._parties, self._has_ended = run, transport.parties, has_ended
        self._has_scores, self._reported = has_scores and has_ended is None, reported
        self._reports: list[events.Event] = []
        self._observe: events.Observer = lambda report: None

    @property
    def parties(self) -> tuple[str, ...]:
        """Names of the parties, also of those that have left, by id. It is complete when the run has begun."""
        return self._parties

    def run(self, observe: events.Observer | None = None) -> FederationResult:
        """Run all rounds that the store does not have.

        Args:
            observe: a function that is called with each report, after it is written to disk.

        Raises:
            FederationStoppedError: too few parties have answered; the run is stored.
            InputError: the folder has another run.
        """
        self._observe = observe or self._observe
        records = [self._evaluate_if_due(self._begin())]
        while not is_over(records[0], self._rounds, self._has_ended):  # a popped record frees its state
            records.append(self._evaluate_if_due(self._run_phase(records.pop())))
        record = self._finish(records.pop())
        metrics = metrics_of_reports(self._method, self._reports, record)
        return FederationResult(record.state, self._algorithm.server_model(record.state), metrics,
                                tuple(self._reports), record)

    def _begin(self) -> ServerRecord:
        names = self._transport.parties
        record = self._store.read(
            lambda parties: jax.eval_shape(first_state, self._algorithm, self._description.model, jnp.ones(parties)))
        if record is None:
            return self._start(names)
        if record.protects != self._protects:
            kinds = ("a rehearsal", "a federation")
            raise InputError(f"{self._store.folder} has a run of {kinds[record.protects]}, which "
                             f"{kinds[self._protects]} cannot continue: choose another folder")
        different = [name for name, value in self._identity.items() if record.identity.get(name) != value]
        if different:
            raise InputError(f"{self._store.folder} has another run, with another value of {', '.join(different)}: "
                             "choose another folder")
        if record.round > self._rounds:
            raise InputError(f"the run in {self._store.folder} has {record.round} rounds, beyond rounds={self._rounds}")
        self._reports = [events.read_event(entry) for entry in self._store.entries()]
        self._parties = record.parties
        self._observe(events.StartReport(record.run, record.parties, record.sizes, resumed=record.round))
        return self._change_members(record)._replace(excluded=())  # the person has put the folder of a party back

    def _change_members(self, record: ServerRecord) -> ServerRecord:
        """Let parties join and leave from the next round on, if the transport has other parties than the run."""
        names, members = self._transport.parties, record.members[-1][1]
        before = {record.parties[k] for k in members}
        if before == {*names} or record.round >= self._rounds:
            return record
        if self._secure is not None:
            raise InputError("the sites of a run with secure sums cannot change: each has accepted the others' keys. "
                             "Continue with the same sites, or start a new run with another --out")
        check_change_of_members(self._algorithm, self._description, self._participation, len(members))
        self._parties = (*record.parties, *(new := [name for name in names if name not in record.parties]))
        root = self._own_root(record)
        answers, ready = self._ask_to_start(record.run, {name: self._parties.index(name) for name in new})
        record, report = change_members(
            record, names, dict(zip(new, ready, strict=True)),
            lambda ids, sizes: draw_cohort(self._participation, ids, sizes, root, record.round)[1])
        self._algorithm.check(len(names))
        return self._stored(record, report, answers)

    def _ask_to_start(self, run: str, ids: Mapping[str, int]) -> tuple[Answers, list[Ready]]:
        """Let parties start; returns their answers in the order of ``ids``, or stops."""
        messages = start_messages(run, ids, self._first_model(), self._seed, self._experiment)
        answers = exchange(self._transport, messages, "ready", read_ready, replace(self._rules, quorum=None))
        self._require(answers, len(ids), "the start, in which every party must answer")
        for name, party in answers.values.items():
            started = {**dict(zip(party.splits, party.split_sizes, strict=True)), "train": party.samples}
            for split, rows in self._reported.get(name, {}).items():
                if started.get(split, rows) != rows:
                    raise FederationRefusedError(
                        f"{name}: it has reported {rows} rows ('{split}') to all sites, and begins with "
                        f"{started[split]}: its replies would have another weight")
        return answers, [answers.values[name] for name in ids]

    def _start(self, names: tuple[str, ...]) -> ServerRecord:
        run = self._run or self._store.new_run()
        if self._protects:
            self._store.new_secret(SYSTEM_KEY_BYTES)  # before the record, which a resumed run reads it with
        answers, ready = self._ask_to_start(run, {name: k for k, name in enumerate(names)})
        if self._secure is not None:
            self._secure.begin(run, {name: party.card for name, party in zip(names, ready, strict=True)}, answers)
        if len({(party.splits, party.score) for party in ready}) > 1:
            raise InputError("the sites have different sample sets or scores: use the same experiment at all of them")
        sizes = tuple(1 if self._secure is not None else party.samples for party in ready)
        check_sizes(np.array(sizes))
        shares = self._participation.shares(jnp.asarray(sizes, jnp.int32))
        state = first_state(self._algorithm, self._first_model(), shares)
        split_sizes = tuple(zip(*(party.split_sizes for party in ready), strict=True))
        protected = tuple(k for k, party in enumerate(ready) if party.protected)
        record = ServerRecord(run, names, self._identity, sizes, ready[0].splits, split_sizes, ready[0].score, state,
                              protected=protected, protects=self._protects, members=((0, (*range(len(names)),)),))
        return self._stored(record, events.StartReport(run, names, sizes), answers)

    def _first_model(self) -> Vector:
        """The model of the first round. It is computed again when it is needed: a large one takes much memory."""
        return self._init(keys.initial_key(self._seed))

    # A phase

    def _run_phase(self, record: ServerRecord) -> ServerRecord:
        """Ask the parties of a phase, step, and store."""
        t, phase, root = record.round, record.phase, self._own_root(record)
        members = members_of_round(record.members, t)
        own_key, cohort = draw_cohort(self._participation, members, record.sizes, root, t)
        stale = self._late.stale(record)
        (asked, left), answers = self._asked(record, cohort, stale), Answers()
        has_left = dict.fromkeys(left, "it has left the federation")
        if asked and not (self._secure is not None and self._secure.stored((t, phase + 1))):
            answers, record = self._ask(record, asked, cohort)
        if self._secure is not None and self._sums_replies:
            collected = self._secure.collect(record, answers, self._description.replies[phase], cohort, self._samples)
        else:
            collected = self._late.collect(record, answers.values, self._description.replies[phase], cohort, stale)
        alive = tuple(np.asarray(cohort.index)[np.asarray(collected.replies.alive)].tolist())
        counted = tuple(k for k in alive if k not in stale)
        staleness = self._late.mean_staleness(record, alive)
        began = {k: sent for k, sent in record.unanswered.items() if k in alive or k in collected.refused}
        if alive or self._algorithm.steps_without_replies:
            state = next_state(self._algorithm, record.state, collected.replies, own_key, t, phase=phase)
            record = record._replace(state=state)
        report = events.PhaseReport(t, phase, answers.attempts, tuple(asked), counted,
                             {k: shorten(reason) for k, reason in collected.refused.items()},
                             _by_id(record, answers.absent) | has_left, _ids(record, answers.late),
                             {k: norm if math.isfinite(norm) else None for k, norm in collected.norms.items()},
                             began, stale, staleness)
        del collected  # the replies: writing the record needs memory, too
        jax.block_until_ready(record.state)  # type: ignore[no-untyped-call]
        positions = {k: (record.unanswered.get(k, t), phase) for k in (*report.counted, *report.refused)}
        is_last = phase + 1 == len(self._description.messages)
        record = record._replace(
            round=t + is_last, phase=0 if is_last else phase + 1, working=None if is_last else report.counted,
            counted={**record.counted, **{k: positions[k] for k in report.counted}},
            refused={**record.refused, **{k: positions[k] for k in report.refused}},
            unanswered=self._late.unanswered(record, (*report.absent,)))
        return self._stored(record, report, answers)

    def _own_root(self, record: ServerRecord) -> Array:
        """The key of cohorts and of the server's random numbers: its secret if the run protects parties."""
        return system_key(self._store.read_secret()) if record.protects else self._root

    def _asked(self, record: ServerRecord, cohort: Cohort, stale: Sequence[int]) -> tuple[list[int], list[int]]:
        """The ids of the parties that work in the phase, and of those that have left since the round was drawn."""
        index = np.asarray(cohort.index)
        working = (index[np.asarray(self._working(self._algorithm, cohort))].tolist() if record.working is None
                   else [k for k in index.tolist() if k in record.working])
        left = [k for k in working if record.parties[k] not in self._transport.parties]
        return [k for k in working if k not in (*left, *stale)], left

    def _ask(self, record: ServerRecord, asked: list[int], cohort: Cohort) -> tuple[Answers, ServerRecord]:
        """Send the messages of a phase and collect enough replies; the record notes which parties start again."""
        drawn = dict(zip(np.asarray(cohort.index).tolist(), np.asarray(cohort.effort), strict=True))
        efforts = {k: drawn[k] for k in asked if k not in record.excluded}
        names, lost = [record.parties[k] for k in efforts], dict[str, str]()

        def messages_to(of_parties: Mapping[int, Any]) -> dict[str, EncodedMessage]:
            return work_messages(self._algorithm, record, of_parties, self._root, names if self._sums_replies else None)

        def recover(name: str) -> EncodedMessage | None:
            nonlocal record
            k = record.parties.index(name)
            record, reason = self._restart(record, k)
            if reason:
                lost[name] = reason
                return None
            return messages_to({k: efforts[k]})[name]
        needed = len(asked) if self._rules.quorum is None else min(self._rules.quorum, len(asked))
        like, rules = self._description.replies[record.phase], self._rules
        read: Callable[[Message], Any] = partial(Message.tree, like=like)
        if self._secure is not None and self._sums_replies:
            needed, rules = self._secure.ask(names, needed)
            read = partial(read_masked, count=count_of(like), words=like.weight.shape[-1])
        answers = exchange(self._transport, messages_to(efforts), "reply", read, rules, recover)
        answers.absent |= {record.parties[k]: f"{_LOST} and is no longer asked" for k in asked if k not in efforts}
        answers.absent |= {name: f"{reason}; {lost[name]}" for name, reason in answers.absent.items() if name in lost}
        self._require(answers, needed, f"phase {record.phase + 1} of round {record.round + 1}")
        return answers, record

    def _restart(self, record: ServerRecord, k: int) -> tuple[ServerRecord, str]:
        """Ask a party that has lost its state to start again; returns the record, and why it has not.

        A party that does not answer is asked again in the next round: its absence must not stop a run with a quorum. A
        party that may not start again, or has other rows, is no longer asked until the server starts again: its folder
        can have been put back. The replies of a party that has started again are forgotten.
        """
        name, excluded = record.parties[k], record._replace(excluded=tuple(sorted({*record.excluded, k})))
        # With the folder, the keys of secure sums are lost.
        if self._secure is not None or (self._lost_state != "restart" and self._has_party_states):
            return excluded, f"{_LOST}: put its folder back, or let it restart (--set federation.lost_state=restart)"
        messages = start_messages(record.run, {name: k}, self._first_model(), self._seed, self._experiment,
                                  (record.round, record.phase))
        rules = replace(self._rules, quorum=None, retries=self._rules.retries if self._rules.quorum is None else 0)
        ready: Ready | None = exchange(self._transport, messages, "ready", read_ready, rules).values.get(name)
        if ready is None:
            return record, f"{_LOST}, and has not answered the start: it is asked again in the next round"
        if ready.samples != record.sizes[k]:
            return excluded, f"{_LOST}, and has {ready.samples} training samples instead of {record.sizes[k]}"
        restarted = {*record.restarted, k} if self._has_party_states else {*record.restarted}
        record = record._replace(
            counted=_without(k, record.counted), refused=_without(k, record.refused),
            unanswered=_without(k, record.unanswered), restarted=tuple(sorted(restarted)))
        self._store.write(record)  # first: a party that has answered a phase refuses another message for it
        return record, ""

    def _require(self, answers: Answers, needed: int, title: str) -> None:
        if len(answers.values) >= needed:
            return
        reasons = reasons_of_sites(answers.absent)
        raise FederationStoppedError(
            f"{title}: {len(answers.values)} parties have answered after {answers.attempts} attempt(s), {needed} are "
            f"needed. {reasons}. Everything is stored in {self._store.folder}: start the run again to continue")

    # Models

    def _evaluate_if_due(self, record: ServerRecord) -> ServerRecord:
        t = record.round
        is_due = record.phase == 0 and (t % self._every == 0 or t == self._rounds) and record.evaluated < t
        if not is_due or (t == 0 and not self._policy.scores_first_model) or not self._has_scores:
            return record
        # An absent site does not stop a run with a quorum: only its scores are missing.
        rules = self._rules if self._rules.quorum is None else replace(self._rules, retries=0)
        report, answers = (self._ask_for_scores(record, rules) if self._secure is None
                           else self._sum_scores(record, rules, self._secure))
        return self._stored(record._replace(evaluated=t), report, answers)

    def _ask_for_scores(self, record: ServerRecord, rules: RoundRules) -> tuple[events.EvaluationReport, Answers]:
        """The scores of every site."""
        answers = exchange(self._transport, self._model_messages("evaluate", record), "scores",
                           partial(read_scores, splits=record.splits), rules)
        scores: dict[int, Scores] = dict(sorted((record.parties.index(name), value)
                                                for name, value in answers.values.items()))
        return events.EvaluationReport(
            record.round, {k: s.personal for k, s in scores.items() if s.personal is not None},
            {k: s.shared for k, s in scores.items() if s.shared is not None},
            tuple(k for k, s in scores.items() if s.personal is None), _by_id(record, answers.absent)), answers

    def _sum_scores(self, record: ServerRecord, rules: RoundRules,
                    secure: SecurePhases) -> tuple[events.EvaluationReport, Answers]:
        """The mean scores of the sites from a secure sum; without enough sites there are none."""
        names, position, answers = names_of_scores(record.score, self._metrics), (record.round, 0), Answers()
        count = count_of_scores(names, record.splits, has_shared=self._description.shared is not None)
        messages = self._model_messages("evaluate", record)
        if secure.stored(position) is None:
            secure.ask([*messages], 1)
            answers = exchange(self._transport, messages, "scores", partial(read_masked, count=count, words=2), rules)
        total = secure.total(record.run, position, digest(record.state), answers, may_stop=False)[1]
        means = () if total is None else tuple(mean_scores_of(total, names, record.splits))
        return events.EvaluationReport(record.round, {}, {}, (), _by_id(record, answers.absent), means), answers

    def _finish(self, record: ServerRecord) -> ServerRecord:
        """Let every party store its models; those that were absent are asked when the run is started again."""
        if any(isinstance(report, events.FinishReport) and not report.absent and report.rounds == record.round
               for report in self._reports):
            return record
        record = record._replace(unanswered={})  # if the run is extended, the messages are new
        answers = exchange(self._transport, self._model_messages("finish", record), "stored", lambda message: True,
                           replace(self._rules, quorum=None))
        report = events.FinishReport(record.round, _ids(record, answers.values), _by_id(record, answers.absent))
        return self._stored(record, report, answers)

    def _model_messages(self, kind: str, record: ServerRecord) -> dict[str, EncodedMessage]:
        ids = [k for k, name in enumerate(record.parties)
               if name in self._transport.parties and k not in record.excluded]
        is_summed = self._secure is not None and kind == "evaluate"
        return model_messages(kind, self._algorithm, record, ids,
                              [record.parties[k] for k in ids] if is_summed else None)

    def _stored(self, record: ServerRecord, report: events.Event, answers: Answers) -> ServerRecord:
        """Write the report and the record to disk, and return the new record."""
        length = self._store.append_line(report.plain())
        record = record._replace(log_bytes=length, bytes_down=record.bytes_down + answers.bytes_down,
                                 bytes_up=record.bytes_up + answers.bytes_up)
        self._store.write(record)
        gc.collect(0)  # JAX drops its references to memory of NumPy, such as the replies, when the collector runs
        self._reports.append(report)
        self._observe(copy.deepcopy(report))  # an observer that edits it edits no metric
        return record


def _ids(record: ServerRecord, names: Iterable[str]) -> tuple[int, ...]:
    return tuple(sorted({record.parties.index(name) for name in names if name in record.parties}))


def _without(k: int, of_parties: Mapping[int, _Value]) -> dict[int, _Value]:
    return {party: value for party, value in of_parties.items() if party != k}


def _by_id(record: ServerRecord, reasons: Mapping[str, str]) -> dict[int, str]:
    return {record.parties.index(name): reason for name, reason in reasons.items()}


@jax.jit
def first_state(algorithm: Algorithm, model: Vector, shares: Float[Array, " N"]) -> ServerState:
    """The server's state before the first round."""
    return initial_server(algorithm, model, shares)


@partial(jax.jit, static_argnames="phase", donate_argnames="state")
def next_state(algorithm: Algorithm, state: ServerState, replies: Replies, round_key: Array, t: int, *,
               phase: int) -> ServerState:
    """The server's state after a phase of round t.

    Args:
        state: the server's state. Its memory is that of the new one, so that it cannot be used any more.
        round_key: the server's key of the round; with a system key, the server's noise protects.
    """
    of_round = algorithm_of_round(algorithm, jnp.asarray(t))
    return server_step(of_round, phase, state, replies, keys.server_key(keys.phase_key(round_key, phase)))[0]


def is_over(record: ServerRecord, rounds: int, has_ended: Callable[[ServerState], bool] | None) -> bool:
    """Whether a run has no further round: after ``rounds``, or after the round in which its algorithm has ended."""
    return record.round >= rounds or (record.phase == 0 and has_ended is not None and has_ended(record.state))


class LateReplies:
    """Says which messages are repeated, and how stale the work of each party is.

    Args:
        algorithm: the algorithm.
        participation: draws the cohorts.
        rules: without a quorum, no reply is late.

    Raises:
        InputError: the message to a site would change while it works.
    """

    def __init__(self, algorithm: Algorithm, participation: Participation, rules: RoundRules) -> None:
        self._algorithm, self._multiple = algorithm, algorithm.norm_multiple
        # The length of a party's update has no noise: reports, metrics and the model card must not have it.
        self._hides_norms = protects_parties(algorithm)
        self._server = algorithm if isinstance(algorithm, Asynchronous) else None
        self._count = rules.quorum is not None and contains(algorithm, Asynchronous)
        if not self._count:
            return
        if self._server is None:
            raise InputError(f"{type(algorithm).__name__} around Asynchronous changes the message to a site while it "
                             "works, so that a late reply cannot count: put Asynchronous around it, or set no quorum")
        if not isinstance(participation, Full):
            raise InputError(f"late replies of an asynchronous server need participation Full, got "
                             f"{type(participation).__name__}: every site works all the time")

    def _staleness(self, record: ServerRecord, parties: Sequence[int]) -> NDArray[np.int32]:
        """The number of versions since the message to each of some parties."""
        state: AsynchronousState = record.state.extra
        lanes = np.asarray(state.version - state.started)
        staleness: NDArray[np.int32] = lanes[np.asarray(parties, int) % len(lanes)]
        return staleness

    def stale(self, record: ServerRecord) -> tuple[int, ...]:
        """The parties that get a new message instead of the one that they have not answered."""
        waiting = sorted(record.unanswered)
        if self._server is None or not waiting:
            return ()
        return tuple(np.array(waiting)[self._staleness(record, waiting) > self._server.max_staleness].tolist())

    def unanswered(self, record: ServerRecord, absent: tuple[int, ...]) -> dict[int, int]:
        """The round of the message that each absent party of the record's round has still to answer."""
        return {k: record.unanswered.get(k, record.round) for k in absent} if self._count else {}

    def collect(self, record: ServerRecord, values: dict[str, Reply], expected: Reply, cohort: Cohort,
                stale: tuple[int, ...]) -> CollectedReplies:
        """The replies of a phase by the name of their party; ``values`` is emptied.

        A stale party has a reply of zeros, of which ``Asynchronous`` uses nothing.
        """
        replies = {record.parties.index(name): values.pop(name) for name in [*values]}
        replies |= {k: jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), expected) for k in stale}

        def norm_of(k: int, reply: Reply) -> Any:
            return norm_of_reply(self._algorithm, record.state, record.unanswered.get(k, record.round), k, reply,
                                 phase=record.phase)

        collected = collect_replies(replies, expected, cohort, None if self._hides_norms else norm_of, self._multiple)
        return collected._replace(norms={k: norm for k, norm in collected.norms.items() if k not in stale})

    def mean_staleness(self, record: ServerRecord, alive: Sequence[int]) -> float | None:
        """The mean over the parties whose reply is in the step, and the stale ones, before the server's step."""
        return None if self._server is None or not alive else float(self._staleness(record, alive).mean())
