"""A curious server asks for what the plan does not contain: a site refuses every such message, and the run goes on."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from federation.harness import EXPERIMENT, LIMITS, SITES, Consortium, answer_of, read_request, request_bytes, signed
from resolvent.algorithms import keys
from resolvent.comparisons.runs.record import read_record
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.names import JOURNAL, VERSIONS, library_version
from resolvent.federation.protocol.policy import FEDERATION
from resolvent.federation.protocol.refusals import Refusal
from resolvent.federation.protocol.wire import decode, encode
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.planned_work import Membership, PlannedWork

SAMPLED = "participation: {name: Stragglers, inner: {name: Uniform, cohort: 1}, share: 1.0}\n"
TEXT = EXPERIMENT.replace("alone: local, FedAvg: fedavg", "FedProx: {name: fedprox, mu: 0.1}").replace(
    "rounds: 3\nevaluate_every: 3", "rounds: 4\nevaluate_every: 2")


def with_arrays(message, **arrays):
    return replace(message, arrays={**message.arrays, **arrays})


def other_key(message, *, seed=0, round_=None, phase=None, party=1):
    t, p = message.round if round_ is None else round_, message.phase if phase is None else phase
    key = keys.party_key(keys.phase_key(keys.round_key(keys.root_key(seed), jnp.asarray(t)), p), jnp.array(party))
    return with_arrays(message, key=np.asarray(jax.random.key_data(key)))


def other_model(message):
    return replace(message, arrays={name: array + 1 if array.dtype.kind == "f" and name != "effort" else array
                                    for name, array in message.arrays.items()})


PLAN, OLD, LOST = "not in the plan", "old", "lost state"
# Before the server's own message: kind, message -> another message, code of the refusal.
BEFORE = {
    "another key of the first state": ("start", lambda m: with_arrays(m, key=m.arrays["key"] + 1), PLAN),
    "the first state of another party": ("start", lambda m: with_arrays(m, key=np.asarray(jax.random.key_data(
        keys.initial_party_key(keys.initial_key(0), jnp.array(0))))), PLAN),
    "more rounds": ("start", lambda m: replace(m, facts={**m.facts, "rounds": 400}), "conflict"),
    "a round beyond the plan": ("work", lambda m: replace(m, round=m.round + 4), PLAN),
    "a phase beyond the plan": ("work", lambda m: replace(m, phase=3), PLAN),
    "another seed": ("work", lambda m: other_key(m, seed=9), PLAN),
    "the key of another party": ("work", lambda m: other_key(m, party=0), PLAN),
    "the key of another round": ("work", lambda m: other_key(m, round_=m.round + 1), PLAN),
    "the key of another phase": ("work", lambda m: other_key(m, phase=m.phase + 1), PLAN),
    "a little effort": ("work", lambda m: with_arrays(m, effort=m.arrays["effort"] / 2), PLAN),
    "an effort beyond all work": ("work", lambda m: with_arrays(m, effort=m.arrays["effort"] * 0 + 2), "conflict"),
    "scores after a round between two evaluations": ("evaluate", lambda m: replace(m, round=m.round + 1), PLAN),
    "scores before the first round": ("evaluate", lambda m: replace(m, round=0), PLAN),
    "the end before the last round": ("finish", lambda m: replace(m, round=2), PLAN),
}
AFTER = {
    "a second model for one message": ("work", other_model, "conflict"),
    "a second effort for one message": ("work", lambda m: with_arrays(m, effort=m.arrays["effort"] / 2), "conflict"),
    "scores of another model": ("evaluate", other_model, PLAN),
    "scores as if the last reply had not counted": (
        "evaluate", lambda m: replace(m, facts={**m.facts, "counted": None, "refused": [0, 0]}), PLAN),
    "other models at the end": ("finish", other_model, PLAN),
}


class CuriousServer(InProcess):
    """Sends berlin the server's messages, and before and after them those of the tables."""

    def __init__(self, handlers):
        super().__init__(handlers)
        self.codes = {}

    def broadcast(self, messages, **settings):
        replies = {}
        for name, data in ((name, bytes(message)) for name, message in messages.items()):
            attacks = name == "berlin" and read_request(data) is None
            self._attack(data, BEFORE if attacks else {})
            replies[name] = self.handlers[name](data)
            self._attack(data, AFTER if attacks else {})
            if attacks:
                assert decode(self.handlers[name](data)).arrays.keys() == decode(replies[name]).arrays.keys()
        return replies

    def _attack(self, data, attacks):
        for title, (kind, change, _) in attacks.items():
            message = decode(data)
            if message.kind == kind:
                answer = decode(self.handlers["berlin"](encode(change(message))))
                assert not answer.arrays
                self.codes.setdefault(title, set()).add(answer.facts.get("code"))


def run_with(folder, text, transport, versions_of=None):
    """The digest of the end of a run whose sites have the split of those of another folder."""
    consortium = Consortium(folder, text=text)
    for site in SITES if versions_of else ():
        key = Path(VERSIONS, "table.key")  # from which the split follows; the journal has its digest
        (folder / site / VERSIONS).mkdir(parents=True)
        Journal(folder / site / JOURNAL).write_file(
            folder / site / key, partial(shutil.copyfile, versions_of / site / key))
    assert consortium.serve(transport=transport) == {"status": "complete"}
    return read_record(folder / "out").plain()["methods"]["FedProx"]["digest"]


@pytest.mark.when_changed
@nightly.parametrize("text", [TEXT, TEXT + SAMPLED], ids=["all parties", "a party in each round, with stragglers"])
def test_a_server_gets_no_answer_beyond_the_plan(text, tmp_path):
    """The server sends other messages as well as its own; the run is that of a server that does not."""
    (tmp_path / "honest").mkdir()
    (tmp_path / "curious").mkdir()
    servers = []

    def transport(handlers):
        servers.append(CuriousServer(handlers))
        return servers[-1]

    honest = run_with(tmp_path / "honest", text, InProcess)
    assert run_with(tmp_path / "curious", text, transport, tmp_path / "honest") == honest
    expected = {title: {code} for title, (_, _, code) in {**BEFORE, **AFTER}.items()}
    assert servers[0].codes == expected
    curious_kinds, honest_kinds = ([kind for entry in Journal(tmp_path / name / "berlin" / JOURNAL).entries
                                    if (kind := entry["kind"]) != "file"] for name in ("curious", "honest"))
    assert curious_kinds == honest_kinds


def test_a_party_outside_the_cohort_does_not_work():
    """The cohorts are those of the plan's seed; a site computes them itself."""
    sites = ("aachen", "berlin", "celle")
    planned = [PlannedWork(rv.fedavg(rv.solvers.GD(0.1)), rv.participation.Uniform(2), Membership(name, sites, ()), 3,
                           9, None, FEDERATION) for name in sites]
    for t in range(9):
        round_key = keys.round_key(keys.root_key(3), jnp.asarray(t))
        cohort = rv.participation.Uniform(2).draw((), keys.cohort_key(round_key), t, jnp.array([9, 5, 7]))[0]
        key = [np.asarray(jax.random.key_data(keys.party_key(keys.phase_key(round_key, 0), jnp.array(k))))
               for k in range(3)]
        for k, plan in enumerate(planned):
            if k in cohort.index.tolist():
                plan.check_work(t, 0, k, key[k], 1.0)
            else:
                with pytest.raises(Refusal, match=f"party {k} does not work in round {t + 1}"):
                    plan.check_work(t, 0, k, key[k], 1.0)


@pytest.mark.parametrize(("participation", "algorithm", "expected"), [
    (rv.participation.BySize(2), rv.fedavg(rv.solvers.GD(0.1)), 1.0),
    (rv.participation.FixedEffort(jnp.array([1.0, 0.5, 0.25])), rv.fedavg(rv.solvers.GD(0.1)), 0.5),
    (rv.participation.Stragglers(rv.participation.BySize(2), share=0.5), rv.fedprox(rv.solvers.GD(0.1), mu=1.0), None),
    (rv.participation.Uniform(2), rv.combinators.PrivateParties(rv.fedavg(rv.solvers.GD(0.1)), cohort=2.0), 1.0),
], ids=["by size", "budgets", "stragglers by size", "secret cohorts"])
def test_efforts_that_do_not_depend_on_what_the_site_cannot_know_are_checked(participation, algorithm, expected):
    plan = PlannedWork(algorithm, participation, Membership("b", ("a", "b", "c"), ()), 0, 5, 5, FEDERATION)
    key = np.asarray(jax.random.key_data(keys.party_key(keys.phase_key(keys.round_key(
        keys.root_key(0), jnp.asarray(1)), 0), jnp.array(1))))
    for effort in (0.1, 0.5, 1.0):
        if expected in (None, effort):
            plan.check_work(1, 0, 1, key, effort)
        else:
            with pytest.raises(Refusal, match="asks for the effort"):
                plan.check_work(1, 0, 1, key, effort)


@pytest.mark.when_changed
@pytest.mark.parametrize("rounds", [1, 4])
def test_a_site_that_has_lost_its_folder_does_not_use_a_key_twice(rounds, tmp_path):
    """The ledger remembers the payload of each key, the scores that were sent, and the last round."""
    text = TEXT.replace("rounds: 4\nevaluate_every: 2", f"rounds: {rounds}\nevaluate_every: 1")
    consortium = Consortium(tmp_path, text=text)
    messages = []

    class Recording(InProcess):
        def broadcast(self, sent, **settings):
            messages.append(bytes(sent["berlin"]))
            return super().broadcast(sent, **settings)

    assert consortium.serve(transport=Recording) == {"status": "complete"}
    shutil.rmtree(tmp_path / "berlin" / "mine-1")
    site = consortium.site("berlin")
    start, evaluate, work = (next(m for m in messages[2:] if read_request(m) is None and decode(m).kind == kind)
                             for kind in ("start", "evaluate", "work"))
    for request in messages[:2]:
        assert "refused" not in answer_of(site.handle(request))
    assert decode(site.handle(start)).kind == "ready"
    for old, code in ((evaluate, LOST), *([(work, OLD)] if rounds > 1 else [])):  # later ones are answered
        for message in (old, encode(other_model(decode(old)))):
            assert decode(site.handle(message)).facts["code"] == code
    if rounds == 1:
        assert decode(site.handle(encode(other_model(decode(work))))).facts["code"] == PLAN
        assert decode(site.handle(work)).kind == "reply"
    site.close()


def described(consortium, **changes):
    """A site to which a describing request was sent, and the answer."""
    job, site = signed(consortium.job()), consortium.site("berlin")
    request = {"run": job.run, "party": 1, "experiment": job.experiment, "sites": [*job.sites], "roster": [],
               "version": library_version(), "signature": job.signature, "refit": None, "keeps_validation": False}
    return site, answer_of(site.handle(request_bytes("describe", to="berlin", **{**request, **changes})))


@pytest.mark.parametrize("changes", [{"party": 0}, {"party": 2}, {"party": -1}, {"party": "1"}, {"party": None}])
def test_the_number_of_a_site_is_that_of_the_plan(changes, tmp_path):
    site, answer = described(Consortium(tmp_path, text=TEXT), **changes)
    assert answer["refused"]["code"] == PLAN
    site.close()


def test_a_roster_that_the_lead_has_not_signed_is_refused(tmp_path):
    site, answer = described(Consortium(tmp_path, text=TEXT), roster=["berlin", "aachen"], party=0)
    assert answer["refused"]["code"] == "not signed"
    site.close()


def test_a_site_is_prepared_once(tmp_path):
    """Another scale of a column, or other weights, would be another question about the same rows."""
    consortium, prepared = Consortium(tmp_path, text=TEXT), []

    class Preparing(InProcess):
        def broadcast(self, sent, **settings):
            request = read_request(bytes(sent["berlin"]))
            answers = super().broadcast(sent, **settings)
            if request is not None and request["kind"] == "prepare":
                request["encoding"]["numbers"][0]["deviation"] *= 2
                prepared.append(answer_of(self.handlers["berlin"](request_bytes(**request))))
            return answers

    assert consortium.serve(transport=Preparing) == {"status": "complete"}
    assert [answer["refused"]["code"] for answer in prepared] == [PLAN]


def test_a_run_that_a_site_has_refused_is_not_prepared(tmp_path):
    """The server goes on as if the site had not refused the label."""
    consortium = Consortium(tmp_path, {"berlin": {"limits": replace(LIMITS, labels=("dead",))}}, text=TEXT)
    site, answer = described(consortium)
    assert answer["refused"]["limits"] == {"labels": ["dead"]}
    for kind in ("prepare", "finish"):
        refused = answer_of(site.handle(request_bytes(kind, to="berlin", run="mine-1", plan=consortium.job().plan)))
        assert refused["refused"]["code"] == "conflict"
    site.close()


