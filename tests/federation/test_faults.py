"""Faults of messages, disks and processes: the result is that of an undisturbed run, to the bit, or a named refusal."""

import errno
import re
import shutil
import time
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from unittest.mock import patch

import jax
import numpy as np
import optax
import pytest

import nightly
import resolvent as rv
import resolvent.federation
from federation.mutations import mutated, resealed
from federation.parts import Federation, quadratic
from resolvent.algorithms.description import describe
from resolvent.errors import InputError
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.events import PhaseReport
from resolvent.federation.protocol.exchange import FederationStoppedError, RoundRules, exchange
from resolvent.federation.protocol.stores import PartyStore, ServerStore, StoredAnswers
from resolvent.federation.protocol.wire import EncodedMessage, Message, decode, encode
from resolvent.simulator.storage.tree_files import digest

GD = rv.solvers.GD(0.05, steps=3)
# Two phases, and the state of a party is mirrored by the server: a reply that counts twice or never would show.
ALGORITHM = rv.combinators.Compressed(rv.feddane(GD), rv.codecs.QSGD())


def federation(folder, **settings):
    return Federation(ALGORITHM, quadratic(3), folder, rounds=2, **settings)


def states(parts, record=None):
    """The digests of the server's state and of all party states; default: of the last record that was written."""
    record = record or parts.store.records[-1]
    return digest(jax.tree.map(np.asarray, record.state)), digest(parts.party_states(record))


@pytest.fixture(scope="module", autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The final states, and all messages and replies of a site."""
    with federation(tmp_path_factory.mktemp("undisturbed")) as parts:
        handler, exchanged = parts.transport.handlers["site 1"], []

        def record(message):
            exchanged.append((message, handler(message)))
            return exchanged[-1][1]

        parts.transport.handlers["site 1"] = record
        parts.run()
        return states(parts), exchanged


def another_run(reply, earlier):
    return encode(replace(decode(reply), facts={**decode(reply).facts, "answers": "0" * 64}))


def another_shape(reply, earlier):
    message = decode(reply)
    return encode(replace(message, arrays={name: np.zeros((7, 7)) for name in message.arrays or {"x": 0}}))


def another_kind(reply, earlier):
    return encode(replace(decode(reply), kind="models"))


# name -> what arrives at the server instead of a site's first reply to each message
REPLIES = {
    "none": lambda reply, earlier: None,
    "of an earlier round": lambda reply, earlier: earlier[0] if earlier else None,
    "of another run": another_run,
    "of another shape": another_shape,
    "of another kind": another_kind,
    "too large": lambda reply, earlier: reply + bytes(2**20),
    "truncated": lambda reply, earlier: reply[:-3],
    "empty": lambda reply, earlier: b"",
    "no bytes": lambda reply, earlier: 3,
}


class DisturbedFirst(InProcess):
    """Each message to site 1 first gets another reply; every reply arrives once more at the next broadcast."""

    def __init__(self, handlers):
        super().__init__(handlers)
        self.disturbances, self.first, self.replies = None, set(), []

    def broadcast(self, messages, *, deadline, quorum, grace):
        replies = super().broadcast(messages, deadline=deadline, quorum=quorum, grace=grace)
        if "site 1" in messages and bytes(messages["site 1"]) not in self.first:
            self.first.add(bytes(messages["site 1"]))
            earlier, self.replies = self.replies, [*self.replies, replies["site 1"]]
            replies["site 1"] = next(self.disturbances)(replies["site 1"], earlier)
        self.repeated = list(replies.items())
        return {name: reply for name, reply in replies.items() if reply is not None}

    def late_replies(self):
        return [(name, reply) for name, reply in self.repeated if reply is not None]


@pytest.mark.when_changed
@nightly.parametrize("first", [0, 5])
def test_a_wrong_reply_is_not_counted_and_the_phase_is_repeated(first, undisturbed, tmp_path):
    """The replies take turns: to the start, 4 phases, 2 evaluations and the end."""
    with federation(tmp_path, transport=DisturbedFirst, rules=RoundRules(max_bytes=2**19)) as parts:
        parts.transport.disturbances = cycle([*REPLIES.values()][first:] + [*REPLIES.values()][:first])
        reports = parts.run().reports
        assert states(parts) == undisturbed[0]
    phases = [report for report in reports if isinstance(report, PhaseReport)]
    assert len(phases) == 4
    assert all(report.counted == (0, 1, 2) for report in phases)
    assert all(report.attempts == 2 for report in phases)
    assert all(0 in report.late for report in phases)  # the second copies of replies


@pytest.mark.when_changed
def test_a_wrong_reply_that_comes_again_stops_the_run_with_its_reason(undisturbed, tmp_path):
    with federation(tmp_path, rules=RoundRules(retries=1)) as parts:
        handler = parts.transport.handlers["site 1"]
        parts.transport.handlers["site 1"] = lambda message: another_shape(handler(message), []) if decode(
            message).kind == "work" else handler(message)
        with pytest.raises(FederationStoppedError, match=r"phase 1 of round 1: 2 parties .* 2 attempt.* 3 are needed. "
                                                         r"site 1: .*start the run again"):
            parts.run()
        parts.transport.handlers["site 1"] = handler
        parts.run()
        assert states(parts) == undisturbed[0]


def test_a_message_that_is_repeated_gets_the_stored_reply(undisturbed, tmp_path):
    """Exactly once: also after a restart of the party, and not for the messages before it."""
    _, exchanged = undisturbed
    with federation(tmp_path) as parts:
        party = parts.parties["site 1"]
        work = [(message, reply) for message, reply in exchanged if decode(message).kind in ("start", "work")]
        for message, reply in work[:3]:
            assert party.handle(message) == reply
        before = digest(party._record.pending)
        parts.start_party(1)
        party = parts.parties["site 1"]
        assert party.handle(work[2][0]) == work[2][1]
        assert digest(party._record.pending) == before
        for message, code in ((work[1][0], "old"), (resealed_work(work[2][0]), "conflict")):
            assert decode(party.handle(message)).facts["code"] == code
        assert digest(party._record.pending) == before


def resealed_work(message):
    """The same round and phase with another content."""
    message = decode(message)
    return encode(replace(message, arrays={**message.arrays, "effort": np.float64(0.5)}))


WRONG_MESSAGES = {
    "of another run": lambda m: replace(m, run="another"),
    "not finite": lambda m: replace(m, arrays={k: np.full_like(v, np.nan) if v.dtype == float else v
                                               for k, v in m.arrays.items()}),
    "of another shape": lambda m: replace(m, arrays={k: np.zeros(9) for k in m.arrays}),
    "for another party": lambda m: replace(m, facts={**m.facts, "party": "site 2"}),
    "of a phase that does not exist": lambda m: replace(m, phase=5),
    "of a round beyond the experiment": lambda m: replace(m, round=2),
    "of an unknown kind": lambda m: replace(m, kind="delete"),
    "with an effort beyond 1": lambda m: replace(m, arrays={**m.arrays, "effort": np.float64(2)}),
    "with acknowledgements that are no numbers": lambda m: replace(m, facts={**m.facts, "counted": "all"}),
    "after a reply that the party has not made": lambda m: replace(m, facts={**m.facts, "counted": [1, 0]}),
}


def test_a_party_does_not_act_on_a_wrong_message(undisturbed, tmp_path):
    """It answers with a refusal, and neither its state nor its files change."""
    start, work = ([m for m, _ in undisturbed[1] if decode(m).kind == kind] for kind in ("start", "work"))
    with federation(tmp_path) as parts:
        party = parts.parties["site 1"]
        assert decode(party.handle(work[0])).facts["code"] == "lost state"
        party.handle(start[0])
        before = (parts.stores["site 1"].folder / "party.record").read_bytes()
        for case, change in WRONG_MESSAGES.items():
            answer = decode(party.handle(encode(change(decode(work[0])))))
            assert answer.kind == "refusal", case
        assert (parts.stores["site 1"].folder / "party.record").read_bytes() == before
        assert decode(party.handle(encode(replace(decode(start[0]), run="2")))).facts["code"] == "other run"
        assert decode(party.handle(work[0])).kind == "reply"


class OneReply(InProcess):
    """A site that answers every message with the same bytes."""

    reply = b""

    def broadcast(self, messages, *, deadline, quorum, grace):
        return {"site 1": self.reply}


# At night 10,000 messages are changed at either side, with a wrong checksum and with a correct one.
@pytest.mark.parametrize(("seed", "count"), [
    (0, 250), *(pytest.param(s, 500, marks=pytest.mark.nightly) for s in range(1, 21))])
def test_mutated_messages_reach_neither_a_party_nor_the_server(seed, count, undisturbed, tmp_path):
    """Random damage, at either side; with a correct checksum a party answers, whatever the bytes are.

    A reply with a correct checksum is read only if it has the names, shapes and dtypes of the arrays.
    """
    random, site = np.random.default_rng(seed), OneReply({"site 1": None})
    (start, _), (_, _), (work, reply), *_ = undisturbed[1]
    shapes = describe(ALGORITHM, quadratic(3)).replies[0]
    read, sent = partial(Message.tree, like=shapes), EncodedMessage(decode(work))
    assert bytes(sent) == work
    site.reply = reply
    whole = exchange(site, {"site 1": sent}, "reply", read, RoundRules(retries=0)).values["site 1"]
    with federation(tmp_path) as parts:
        party = parts.parties["site 1"]
        party.handle(start)
        before = digest(party._record.committed)
        for _ in range(count):
            assert decode(party.handle(mutated(work, random))).kind == "refusal"
            with pytest.raises(InputError):
                decode(mutated(reply, random))
            assert party._record.pending is None
        for _ in range(count):
            assert decode(party.handle(resealed(mutated(work, random, keep=40)))).kind in ("refusal", "reply")
            site.reply = resealed(mutated(reply, random, keep=40))
            answers = exchange(site, {"site 1": sent}, "reply", read, RoundRules(retries=0))
            for value in answers.values.values():
                assert [leaf.shape for leaf in jax.tree.leaves(value)] == [
                    leaf.shape for leaf in jax.tree.leaves(whole)]
        assert digest(party._record.committed) == before


def test_clocks_that_differ_and_jump_change_nothing(undisturbed, tmp_path, monkeypatch):
    """Waiting uses a monotonic clock; the time of day is in the site's log and in the status, which people read."""
    times = iter(range(10**9, 10**10, 10**7))
    monkeypatch.setattr("time.time", lambda: 2e9 - next(times))
    monkeypatch.setattr("time.gmtime", lambda gmtime=time.gmtime: gmtime(next(times)))
    with federation(tmp_path) as parts:
        parts.run()
        assert states(parts) == undisturbed[0]
    shown = {"watch.py", "run_status.py", "monitoring.py", "connections.py", "sessions.py",
             "start.py"}  # the programs that write when a site was seen
    for path in Path(resolvent.federation.__file__).parent.rglob("*.py"):
        assert path.name in shown or not re.search(r"\btime\.time\(|\btime\(\)", path.read_text("utf-8")), path.name


class FullDisk(PartyStore):
    """A store whose disk is full for one write of a reply."""

    writes = 0

    def write_file(self, name, message, **trees):
        FullDisk.writes += 1
        if FullDisk.writes == 5:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        super().write_file(name, message, **trees)


def test_a_full_disk_at_a_site_costs_an_attempt(undisturbed, tmp_path):
    FullDisk.writes = 0
    with federation(tmp_path, party_store=FullDisk) as parts:
        report = next(r for r in parts.run().reports if isinstance(r, PhaseReport))
        assert report.attempts == 2
        assert states(parts) == undisturbed[0]


class Killed(BaseException):
    """The end of the process."""


class Kill:
    """Counts the operations of all stores, and ends the process before or after one of them."""

    def __init__(self, at=None):
        self.count, self.at = 0, at

    def around(self, operation):
        self.count += 1
        if self.at == 2 * self.count:
            raise Killed
        result = operation()
        if self.at == 2 * self.count + 1:
            raise Killed
        return result


def killable(store, kill):
    class Killable(store):
        def write_file(self, name, message, **trees):
            kill.around(lambda: super(Killable, self).write_file(name, message, **trees))

        def append_line(self, entry):
            return kill.around(lambda: super(Killable, self).append_line(entry))

    return Killable


class Restarting(InProcess):
    """A party that is killed gives no reply, and is started again from its folder."""

    def broadcast(self, messages, *, deadline, quorum, grace):
        replies = {}
        for name, message in messages.items():
            try:
                replies[name] = self.handlers[name](bytes(message))
            except Killed:
                self.restart(name)
        return replies


def run_with_kill(folder, kill, **settings):
    """A run with a kill; afterwards the killed process, or all of them, is started again."""
    store_answer = StoredAnswers.write

    def write(self, *answer):
        return kill.around(lambda: store_answer(self, *answer))

    with (patch.object(StoredAnswers, "write", write),
          federation(folder, party_store=killable(PartyStore, kill), **settings) as parts):
        if hasattr(parts.transport, "restart"):
            parts.transport.restart = lambda name: parts.start_party(parts.names.index(name))
        parts.server_store = killable(parts.server_store, kill) if "transport" not in settings else parts.server_store
        try:
            result = parts.run()
        except Killed:
            for k in range(len(parts.names)):
                parts.start_party(k)
            result = parts.run()
        return states(parts, result.record)  # a run that was killed after its last record writes nothing more


def operations(folder):
    kill = Kill()
    run_with_kill(folder, kill)
    return kill.count


@pytest.mark.when_changed
@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_kill_at_any_operation_of_a_store_changes_nothing(step, undisturbed, tmp_path):
    """All processes are killed, and all go on from their folders."""
    total = operations(tmp_path / "count")
    assert total > 40
    for at in range(3, 2 * total + 2, step):  # the first kill is after the first party has started
        assert run_with_kill(tmp_path / str(at), Kill(at)) == undisturbed[0], at


@pytest.mark.nightly
@pytest.mark.parametrize("step", [1])
def test_a_kill_of_a_party_changes_nothing(step, undisturbed, tmp_path):
    """Only the party is killed; it goes on from its folder, and the server asks again."""
    Restarting.restart = None
    total = operations(tmp_path / "count")
    for at in range(2, 2 * total, step):
        assert run_with_kill(tmp_path / str(at), Kill(at), transport=Restarting) == undisturbed[0], at


def lose_folder(parts, k):
    """A party whose disk is replaced."""
    name = parts.names[k]
    parts.stores[name].close()
    for path in (parts.folder / name).iterdir():
        path.unlink()
    parts.start_party(k)


def restore_folder(parts, k, backup):
    """A party whose disk is replaced by an older copy."""
    name = parts.names[k]
    parts.stores[name].close()
    shutil.copytree(backup, parts.folder / name, dirs_exist_ok=True)
    parts.start_party(k)


def after_first_round(action):
    def observe(report):
        if isinstance(report, PhaseReport) and (report.round, report.phase) == (0, 1):
            action()
    return observe


def test_a_party_without_its_disk_is_named_and_refused(tmp_path):
    with federation(tmp_path) as parts:
        with pytest.raises(FederationStoppedError, match=r"round 2.*site 1: refused \(lost state\)"):
            parts.run(after_first_round(lambda: lose_folder(parts, 1)))
        assert parts.store.records[-1].round == 1


def test_a_party_without_its_disk_starts_afresh_where_that_is_configured(tmp_path):
    """Also if the run stops after the party has worked again: the next start repeats the message that it answered."""
    with federation(tmp_path, lost_state="restart", rules=RoundRules(retries=0)) as parts:
        handlers = dict(parts.transport.handlers)

        def disturb():
            lose_folder(parts, 1)
            parts.transport.handlers["site 2"] = lambda message: b""

        with pytest.raises(FederationStoppedError, match="site 2"):
            parts.run(after_first_round(disturb))
        parts.transport.handlers = handlers
        result = parts.run()
    assert result.record.restarted == (1,)
    assert all(len(report.counted) == 3 for report in result.reports if isinstance(report, PhaseReport))


@pytest.mark.nightly
def test_a_party_with_an_older_copy_of_its_disk_starts_afresh_too(tmp_path):
    """Its first state replaces the older one: the result is that of a party that has lost its disk."""
    results = []
    for lose in (lose_folder, partial(restore_folder, backup=tmp_path / "backup")):
        with federation(tmp_path / f"{len(results)}", lost_state="restart") as parts:
            def observe(report, parts=parts, lose=lose):
                position = (report.round, report.phase) if isinstance(report, PhaseReport) else None
                if position == (0, 1):
                    shutil.copytree(parts.folder / "site 1", tmp_path / "backup", dirs_exist_ok=True)
                elif position == (1, 0):
                    lose(parts, 1)

            results.append((parts.run(observe).record.restarted, states(parts)))
    assert results[0][0] == (1,)
    assert results[0] == results[1]


def test_a_party_without_state_has_nothing_to_lose(tmp_path):
    """FedAvg's parties store nothing: the result is that of an undisturbed run, and no party is named."""
    results = []
    for name, action in (("undisturbed", lambda: None), ("lost", lambda: lose_folder(parts, 1))):
        with Federation(rv.fedprox(GD, mu=0.1), quadratic(3), tmp_path / name, rounds=2) as parts:
            def observe(report, action=action):
                if isinstance(report, PhaseReport) and report.round == 0:
                    action()
            results.append(parts.run(observe))
    assert digest(results[0].state) == digest(results[1].state)
    assert results[1].record.restarted == ()


def test_a_damaged_record_is_named(tmp_path):
    with federation(tmp_path) as parts:
        parts.run()
        for path in (parts.folder / "site 1" / "party.record", parts.folder / "server" / "server.record"):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        with pytest.raises(InputError, match=r"party\.record cannot be used"):
            parts.start_party(1)
        with pytest.raises(InputError, match=r"server\.record cannot be used"):
            parts.run()


def test_a_folder_of_another_run_is_refused(tmp_path):
    with federation(tmp_path) as parts:
        parts.run()
        with pytest.raises(InputError, match="another run, with another value of seed"):
            parts.run(seed=8)
        with pytest.raises(InputError, match="is being written by process"):
            ServerStore(parts.folder / "site 1")


@pytest.mark.when_changed
def test_a_rehearsal_of_edited_code_does_not_continue(tmp_path):
    """The part has the same name and the same settings as before."""
    def algorithm(rate):
        module = {"__name__": "own_rates"}
        exec(f"def rate(step):\n    return {rate}", module)
        return rv.fedavg(rv.OptaxSolver(optax.sgd(module["rate"]), steps=1))

    with Federation(algorithm(0.01), quadratic(2), tmp_path, rounds=1) as parts:
        parts.run()
        parts.algorithm = algorithm("0.01  # as before")
        parts.run()
        parts.algorithm = algorithm(0.02)
        with pytest.raises(InputError, match="another run, with another value of code"):
            parts.run()
