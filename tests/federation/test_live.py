"""Live federations: quorum, absent sites, late replies; and their replay in the simulator."""

import math
import shutil
from functools import partial

import jax
import pytest

import resolvent as rv
from federation.parts import SEED, Federation, classification, quadratic
from resolvent.errors import InputError
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.events import EvaluationReport, FinishReport, PhaseReport
from resolvent.federation.protocol.exchange import FederationStoppedError, RoundRules, exchange
from resolvent.federation.protocol.wire import EncodedMessage, Message, decode, encode, identity_of_message
from resolvent.federation.server.record_metrics import recorded_participation
from resolvent.testing import assert_close

GD = rv.solvers.GD(0.05, steps=3)
ROUNDS = 5


class Slow(InProcess):
    """Sites that are absent, or whose replies arrive after the wait, in some rounds.

    ``schedule`` has (round, party) -> "absent" or "late"; a late party has done the work, and its reply arrives during
    the next broadcast.
    """

    def __init__(self, handlers):
        super().__init__(handlers)
        self.schedule, self.on_the_way, self.arrived = {}, [], []

    def broadcast(self, messages, *, deadline, quorum, grace):
        replies, self.arrived, self.on_the_way = {}, self.on_the_way, []
        for name, encoded in messages.items():
            header = decode(message := bytes(encoded))
            state = self.schedule.get((header.round, name)) if header.kind == "work" else None
            if state == "absent":
                continue
            reply = self.handlers[name](message)
            if state == "late":
                self.on_the_way.append((name, reply))
            else:
                replies[name] = reply
        return replies

    def late_replies(self):
        return self.arrived


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


@pytest.mark.when_changed
@pytest.mark.parametrize("algorithm", [
    pytest.param(rv.scaffold(GD), id="Scaffold"),
    pytest.param(rv.fedavg(rv.solvers.adam(0.05, batch_size=4, keep=True)), id="memory", marks=pytest.mark.nightly)])
def test_the_record_of_a_live_run_is_repeated_in_the_simulator(algorithm, tmp_path):
    """The work of a party whose reply is late has no effect, also not on what only the party stores."""
    participation = rv.participation.Uniform(4)
    with Federation(algorithm, quadratic(), tmp_path, rounds=ROUNDS, transport=Slow, participation=participation,
                    rules=RoundRules(quorum=2, retries=0)) as parts:
        parts.transport.schedule = {(0, "site 1"): "absent", (1, "site 4"): "late", (2, "site 3"): "absent",
                                    (2, "site 0"): "late", (3, "site 2"): "late"}
        result = parts.run()
        phases = [report for report in result.reports if isinstance(report, PhaseReport)]
        assert [tuple(report.absent) for report in phases] == [(1,), (4,), (0, 3), (2,), ()]
        assert [report.late for report in phases] == [(), (), (4,), (0,), (2,)]
        replayed = recorded_participation(result.record, result.reports, SEED, participation)
        state = rv.simulate(algorithm, parts.problem, rounds=ROUNDS, seed=SEED, participation=replayed, progress=False,
                            evaluate_every=ROUNDS).state
        assert_close(result.state, state.server, 1e-11)
        assert_close(parts.party_states(result.record), state.parties, 1e-11)


@pytest.mark.when_changed
def test_a_run_that_a_simulation_cannot_repeat_is_refused(tmp_path):
    """A party that answers one phase of a round and not the next."""
    with Federation(rv.feddane(GD), quadratic(), tmp_path, rounds=1, rules=RoundRules(quorum=2, retries=0)) as parts:
        handler = parts.transport.handlers["site 2"]
        parts.transport.handlers["site 2"] = lambda m: b"" if decode(m).phase == 1 else handler(m)
        result = parts.run()
    with pytest.raises(InputError, match="site 2 answered the first phase and not phase 2"):
        recorded_participation(result.record, result.reports, SEED)


@pytest.mark.when_changed
def test_fewer_than_the_quorum_repeat_the_phase_and_then_stop_the_run(tmp_path):
    """The next start goes on where the run stopped, with the sites that are there."""
    with Federation(rv.scaffold(GD), quadratic(), tmp_path, rounds=2, transport=Slow,
                    rules=RoundRules(quorum=2, retries=2)) as parts:
        parts.transport.schedule = {(1, f"site {k}"): "absent" for k in range(4)}
        with pytest.raises(FederationStoppedError, match=r"round 2: 1 parties .* after 3 attempt.*, 2 are needed"):
            parts.run()
        assert parts.store.records[-1].round == 1
        parts.transport.schedule = {}
        result = parts.run()
    assert result.record.round == 2
    assert [len(r.counted) for r in result.reports if isinstance(r, PhaseReport)] == [5, 5]


class FirstReplies(InProcess):
    """A transport whose wait ends as soon as the quorum has replied, also with refusals."""

    def broadcast(self, messages, *, deadline, quorum, grace):
        return super().broadcast({name: messages[name] for name in [*messages][:quorum]}, deadline=deadline,
                                 quorum=quorum, grace=grace)


def test_a_refusal_is_no_reply_of_the_quorum():
    """A site with a full disk answers first, in every attempt: the others get the time that they need."""
    def answer(message, name):
        facts = {"answers": identity_of_message(message), "party": name}
        if name != "site 0":
            return encode(Message("stored", "run", facts=facts))
        return encode(Message("refusal", "run", facts={**facts, "code": "storage"}))

    names = tuple(f"site {k}" for k in range(3))
    transport = FirstReplies({name: partial(answer, name=name) for name in names})
    messages = {name: EncodedMessage(Message("finish", "run", facts={"party": name})) for name in names}
    answers = exchange(transport, messages, "stored", lambda message: True, RoundRules(quorum=2, retries=1))
    assert {*answers.values} == {"site 1", "site 2"}
    assert answers.absent == {"site 0": "refused (storage): the site's disk cannot be written; the site's log has the "
                              "details"}
    assert answers.attempts == 1


def test_a_site_that_never_answers_costs_neither_the_evaluation_nor_the_end(tmp_path):
    with Federation(rv.fedavg(GD), quadratic(), tmp_path, rounds=1, rules=RoundRules(quorum=3, retries=0)) as parts:
        handler = parts.transport.handlers["site 2"]
        parts.transport.handlers["site 2"] = lambda m: handler(m) if decode(m).kind == "start" else b""
        reports = parts.run().reports
        evaluation, finish = (next(r for r in reports if isinstance(r, kind))
                              for kind in (EvaluationReport, FinishReport))
        assert sorted(evaluation.personal) == [0, 1, 3, 4]
        assert list(evaluation.absent) == list(finish.absent) == [2]
        parts.transport.handlers["site 2"] = handler
        assert parts.run().reports[-1].stored == (0, 1, 2, 3, 4)
        for k in range(5):  # the run is extended: the parties store the models of its new end
            parts.start_party(k, rounds=2)
        assert parts.run(rounds=2).reports[-1] == FinishReport(2, (0, 1, 2, 3, 4), {})


def test_a_run_begins_when_every_site_has_answered(tmp_path):
    with Federation(rv.fedavg(GD), quadratic(), tmp_path, rules=RoundRules(quorum=1, retries=0)) as parts:
        parts.transport.handlers["site 2"] = lambda message: b""
        with pytest.raises(FederationStoppedError, match="the start, in which every party must answer: 4 parties"):
            parts.run()


@pytest.mark.parametrize(("settings", "reason"), [
    ({"quorum": 0}, "quorum=0"), ({"deadline": -1.0}, "deadline"), ({"retries": -1}, "retries"),
    ({"quorum": 2, "grace": math.inf}, "forever")])
def test_wrong_rules_are_refused(settings, reason):
    with pytest.raises(InputError, match=reason):
        RoundRules(**settings)


def lose_folder(parts, k):
    """The disk of a party is replaced by an empty one."""
    name = parts.names[k]
    parts.stores[name].close()
    (parts.folder / name).rename(parts.folder / f"{name} away")
    parts.start_party(k)


def after_round(number, action):
    def observe(report):
        if isinstance(report, PhaseReport) and report.round == number - 1:
            action()
    return observe


def test_a_site_whose_restart_gets_no_answer_is_asked_again(tmp_path):
    """Its disk and the message to start again are lost. The quorum does not wait for it; it starts a round later."""
    with Federation(rv.scaffold(GD), quadratic(), tmp_path, rounds=4, lost_state="restart",
                    rules=RoundRules(quorum=3, retries=2)) as parts:
        handler, lost = parts.transport.handlers["site 2"], []

        def lose_start(message):
            if "restart" in decode(message).facts and not lost:
                lost.append(message)
                return b""
            return handler(message)

        parts.transport.handlers["site 2"] = lose_start
        result = parts.run(after_round(1, lambda: lose_folder(parts, 2)))
    phases = [report for report in result.reports if isinstance(report, PhaseReport)]
    assert len(lost) == 1
    assert [report.counted for report in phases] == [(0, 1, 2, 3, 4), *[(0, 1, 3, 4)] * 2, (0, 1, 2, 3, 4)]
    assert "it has lost its state, and has not answered the start: it is asked again" in phases[1].absent[2]
    assert (result.record.excluded, result.record.restarted) == ((), (2,))


def test_a_site_that_is_excluded_is_asked_again_when_the_server_starts_again(tmp_path):
    """Its disk has been put back. Until then the messages of the rounds are not sent to it."""
    with Federation(rv.scaffold(GD), quadratic(), tmp_path, rounds=4, rules=RoundRules(quorum=3, retries=0)) as parts:
        def lose(report):
            after_round(1, lambda: lose_folder(parts, 2))(report)
            if isinstance(report, PhaseReport) and report.round == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            parts.run(lose)
        assert parts.store.records[-1].excluded == (2,)
        parts.stores["site 2"].close()
        shutil.rmtree(parts.folder / "site 2")
        (parts.folder / "site 2 away").rename(parts.folder / "site 2")
        parts.start_party(2)
        result = parts.run()
    phases = [report for report in result.reports if isinstance(report, PhaseReport)]
    assert ["lost_state=restart" in report.absent.get(2, "") for report in phases] == [False, True, False, False]
    assert phases[2].absent == {2: "it has lost its state and is no longer asked"}
    assert phases[3].counted == (0, 1, 2, 3, 4)


class Busy(InProcess):
    """Sites that work for several broadcasts: the reply to a new message arrives ``duration(round, party)`` later."""

    def __init__(self, handlers):
        super().__init__(handlers)
        self.duration, self.working, self.arrived, self.sent = lambda t, name: 0, {}, [], []

    def broadcast(self, messages, *, deadline, quorum, grace):
        for name, (message, left) in self.working.items():
            self.working[name] = message, left - 1
        replies, self.arrived = {}, []
        for name, encoded in messages.items():
            header = decode(message := bytes(encoded))
            if header.kind != "work":
                replies[name] = self.handlers[name](message)
                continue
            if name not in self.working:
                self.sent.append((name, header.round, identity_of_message(message)))
                self.working[name] = message, self.duration(header.round, name)
        for name, (message, left) in [*self.working.items()]:
            if left <= 0:
                del self.working[name]
                reply = self.handlers[name](message)
                if messages.get(name) is not None and bytes(messages[name]) == message:
                    replies[name] = reply
                else:
                    self.arrived.append((name, reply))
        return replies

    def late_replies(self):
        return self.arrived


def durations(t, name):
    """Site 3 is slow, and site 4 once works for so long that its version is forgotten."""
    return {"site 0": 0, "site 1": 1, "site 2": t % 2, "site 3": 3, "site 4": 9 if t == 1 else 0}[name]


@pytest.mark.when_changed
@pytest.mark.parametrize(("algorithm", "make_problem"), [
    pytest.param(rv.fedasync(GD, max_staleness=12), quadratic, id="FedAsync", marks=pytest.mark.nightly),
    # Minibatches and learning rates are of the round in which a site began.
    pytest.param(rv.fedbuff(rv.SGD(0.05, batch_size=3, epochs=2, schedule=rv.schedules.Exponential(factor=0.5)),
                            buffer=3, max_staleness=4), classification, id="FedBuff"),
    pytest.param(rv.combinators.Asynchronous(rv.scaffold(GD), max_staleness=12), quadratic, id="Scaffold",
                 marks=pytest.mark.nightly)])
@pytest.mark.parametrize("stop", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_late_replies_of_an_asynchronous_server_count_and_are_repeated_in_the_simulator(algorithm, make_problem, stop,
                                                                                        tmp_path):
    """To the bit: states, models and staleness; also if the server was started again in the middle."""
    def interrupt(report):
        if stop and isinstance(report, PhaseReport) and report.round == 5:
            raise KeyboardInterrupt

    with Federation(algorithm, make_problem(), tmp_path, rounds=12, transport=Busy,
                    rules=RoundRules(quorum=1, retries=0)) as parts:
        parts.transport.duration = durations
        if stop:
            with pytest.raises(KeyboardInterrupt):
                parts.run(interrupt)
        result = parts.run()
        phases = [report for report in result.reports if isinstance(report, PhaseReport)]
        # Every message was sent once, and a slow site got no new one until it had answered, or its version was gone.
        assert len(parts.transport.sent) == len({(name, t) for name, t, _ in parts.transport.sent})
        assert any(report.began for report in phases)
        assert any(4 in report.stale for report in phases)
        replayed = recorded_participation(result.record, result.reports, SEED)
        simulated = rv.simulate(algorithm, parts.problem, rounds=12, seed=SEED, participation=replayed, progress=False,
                                evaluate_every=12)
        assert_close(result.state, simulated.state.server, 1e-13)
        assert_close(parts.party_states(result.record), simulated.state.parties, 1e-13)
        of_network, of_simulation = (metrics[metrics["metric"] == "staleness"]["value"].to_numpy()
                                     for metrics in (result.metrics, simulated.metrics))
        assert_close(of_network, of_simulation, 1e-6)


@pytest.mark.when_changed
@pytest.mark.parametrize(("algorithm", "participation", "reason"), [
    (rv.fedasync(GD), rv.participation.Uniform(2), "need participation Full, got Uniform"),
    (rv.combinators.Compressed(rv.fedbuff(GD, buffer=2), rv.codecs.TopK(1), step=0.0), None,
     "Compressed around Asynchronous changes the message"),
    (rv.fedasync(GD, concurrency=2), None, "concurrency=2")])
def test_late_replies_that_cannot_count_are_refused(algorithm, participation, reason, tmp_path):
    with Federation(algorithm, quadratic(), tmp_path, participation=participation,
                    rules=RoundRules(quorum=1)) as parts, pytest.raises(InputError, match=reason):
        parts.run()
