"""Federations with secure sums: the simulation's numbers to the bit, absent sites, and what the server has."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

import nightly
import resolvent as rv
from federation.parts import SEED, Federation, limits, quadratic
from federation.secure_parts import Recorder, same
from resolvent.errors import InputError
from resolvent.federation.engines.in_process import InProcess, run_in_process
from resolvent.federation.protocol.events import PhaseReport
from resolvent.federation.protocol.exchange import FederationStoppedError, RoundRules
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.protocol.wire import decode, encode, identity_of_message
from resolvent.federation.secure.primitives import local_identities
from resolvent.federation.secure.rules import SumRules
from resolvent.federation.secure.site import SecureSite
from resolvent.federation.site.planned_work import Membership, PlannedWork

pytest.importorskip("cryptography")
pytest.importorskip("Crypto")

GD = rv.solvers.GD(0.05, steps=3)
RULES = SumRules()
FixedPointSums = rv.combinators.FixedPointSums
METHODS = {
    "fedavg": lambda: rv.fedavg(GD),
    "robust, several phases": lambda: rv.combinators.CentreFromSums(
        rv.fedgeomed_plus(GD, sigma=0.5, delta=0.4), steps=2),
    "scaffold, which adds totals": lambda: rv.scaffold(GD),
    "two phases": lambda: rv.feddane(GD, mu=1.0),
}


@pytest.mark.when_changed
@nightly.parametrize("name", METHODS, others=nightly.WHEN_CHANGED)
def test_a_secure_run_is_the_plain_run_and_the_simulation_to_the_bit(name, tmp_path):
    algorithm, problem = FixedPointSums(METHODS[name]()), quadratic(double=False)
    rules = SumRules(threshold=1) if name == "fedavg" else RULES
    secure = run_in_process(algorithm, problem, rounds=3, folder=tmp_path, seed=SEED, secure=rules)
    plain = run_in_process(algorithm, problem, rounds=3, seed=SEED)
    simulated = rv.simulate(algorithm, problem, rounds=3, seed=SEED, progress=False)
    assert same(secure.state, plain.state)
    assert same(secure.shared, simulated.server_model)
    reports = [report for report in secure.reports if isinstance(report, PhaseReport)]
    assert all(report.counted == (0, 1, 2, 3, 4) and not report.absent for report in reports)


@pytest.mark.when_changed
def test_absent_sites_are_left_out_or_the_phase_has_no_effect(recorder, tmp_path):
    algorithm, problem = FixedPointSums(rv.fedavg(GD)), quadratic(double=False)
    recorder.lost = {"party 1": {("work", 0)}, "party 2": {("reveal", 1)},
                     "party 3": {("work", 2)}, "party 4": {("reveal", 2)}}
    result = run_in_process(algorithm, problem, rounds=5, folder=tmp_path, seed=SEED, secure=RULES,
                            rules=RoundRules(quorum=4, grace=0, deadline=5, retries=0))
    counted = [report.counted for report in result.reports if isinstance(report, PhaseReport)]
    # Round 2: the shares recover the mask of party 2. Round 3: party 4 knows its mask with party 3, and is away.
    # Round 4 has the same message as round 3, whose sum the server could have: it must have the same sites.
    assert counted == [(0, 2, 3, 4), (0, 1, 2, 3, 4), (), (0, 1, 2, 4), (0, 1, 2, 3, 4)]
    recorder.lost = {"party 1": {("work", 0)}}
    plain = run_in_process(algorithm, problem, rounds=2, seed=SEED, secure=None,
                           rules=RoundRules(quorum=4, grace=0, deadline=5, retries=0))
    after_two = run_in_process(algorithm, problem, rounds=2, seed=SEED, secure=RULES,
                               rules=RoundRules(quorum=4, grace=0, deadline=5, retries=0))
    assert same(plain.state, after_two.state)


@pytest.mark.when_changed
def test_sums_of_all_sites_wait_for_all_sites_and_need_no_further_step(recorder, tmp_path):
    algorithm, problem = FixedPointSums(rv.fedavg(GD)), quadratic(double=False)
    settings = {"rounds": 2, "seed": SEED, "secure": SumRules(threshold=1),
                "rules": RoundRules(quorum=4, grace=0, deadline=5, retries=0)}
    recorder.lost = {"party 1": {("work", 1)}}
    with pytest.raises(FederationStoppedError, match="5 are needed"):
        run_in_process(algorithm, problem, folder=tmp_path, **settings)
    recorder.lost = {}
    continued = run_in_process(algorithm, problem, folder=tmp_path, **settings)
    assert not {"list", "reveal"} & {head.kind for _, head, _ in recorder.messages}
    assert same(continued.state, run_in_process(algorithm, problem, **settings | {"secure": None}).state)


def test_the_server_gets_masked_integers_and_no_number_of_a_reply(recorder, tmp_path):
    algorithm, problem = FixedPointSums(rv.fedavg(GD)), quadratic(double=False)
    run_in_process(algorithm, problem, rounds=1, folder=tmp_path / "plain", seed=SEED)
    plain = {name: reply for name, head, reply in recorder.messages if head.kind == "work"}
    recorder.messages.clear()
    run_in_process(algorithm, problem, rounds=1, folder=tmp_path / "secure", seed=SEED, secure=RULES)
    for name, head, reply in recorder.messages:
        if head.kind == "work":
            assert {*reply.arrays} == {"masked"}
            integers = reply.arrays["masked"]
            shown = {int(v) for array in plain[name].arrays.values() if array.dtype == np.uint32
                     for v in array.reshape(-1, 2).copy().view("<u8").ravel()}
            assert not shown & {*integers.tolist()}


def with_another_model(head):
    """A message with the next number in place of each of its model."""
    return replace(head, arrays={key: np.nextafter(array, 1, dtype=array.dtype) if key.startswith("payload") else array
                                 for key, array in head.arrays.items()})


@pytest.mark.parametrize("kind", ["work", "evaluate"])
def test_a_server_that_sends_one_site_another_model_has_a_uniform_sum(kind, tmp_path):
    """Whatever it does with the answers: the common masks of the site do not cancel.

    A run stops and says why; without the sum of the scores it goes on.
    """
    algorithm, problem, masked = FixedPointSums(rv.fedavg(GD)), quadratic(double=False), {}

    class Honest(InProcess):
        is_lying = False

        def broadcast(self, messages, **times):
            replies = {}
            for name, data in ((name, bytes(message)) for name, message in messages.items()):
                head = decode(data)
                is_changed = self.is_lying and (head.kind, name) == (kind, "party 1")
                answer = decode(self.handlers[name](encode(with_another_model(head)) if is_changed else data))
                if head.kind == kind and head.round == 0:
                    masked[name] = answer.arrays["masked"]
                # As if it had answered the message that the others got.
                replies[name] = encode(replace(answer, facts=answer.facts | {"answers": identity_of_message(data)}))
            return replies

    class Lying(Honest):
        is_lying = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("resolvent.federation.engines.in_process.InProcess", Honest)
        run_in_process(algorithm, problem, rounds=1, folder=tmp_path / "honest", seed=SEED,
                       secure=SumRules(threshold=1))
        assert np.abs(sum(masked.values()).view("<i8")).max() < 2**50  # a number of replies is far below the modulus
        patch.setattr("resolvent.federation.engines.in_process.InProcess", Lying)
        with (pytest.raises(FederationStoppedError, match="another message than the others") if kind == "work" else
              nullcontext()):
            run_in_process(algorithm, problem, rounds=1, folder=tmp_path / "lying", seed=SEED,
                           secure=SumRules(threshold=1))
    assert np.median(np.abs(sum(masked.values()).view("<i8").astype(float))) > 2**58


@pytest.mark.parametrize("first", ["work", "evaluate"])
def test_no_two_answers_have_the_same_mask(first, recorder, tmp_path):
    """A server asks for the scores of the first model as if they were the reply of the first phase, before or after it.

    With the same mask the difference of both answers would be that of the reply and of the scores, which are few
    numbers of three digits.
    """
    algorithm, problem, evaluations, asked = FixedPointSums(rv.fedavg(GD)), quadratic(double=False), {}, []

    class Lying(Recorder):
        def broadcast(self, messages, **times):
            heads = {name: decode(bytes(message)) for name, message in messages.items()}
            (kind, number), *_ = {(head.kind, head.round) for head in heads.values()}
            if (kind, number) == ("evaluate", 0):
                evaluations.update({name: encode(replace(head, phase=1)) for name, head in heads.items()})
                return {}
            if (kind, number) != ("work", 0):
                return super().broadcast(messages, **times)
            for step in (("work", "evaluate") if first == "work" else ("evaluate", "work")):
                if step == "work":
                    replies = super().broadcast(messages, **times)
                else:
                    asked.extend(decode(self.handlers[name](data)) for name, data in evaluations.items())
            return replies

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("resolvent.federation.engines.in_process.InProcess", Lying)
        run_in_process(algorithm, problem, rounds=1, folder=tmp_path, seed=SEED, secure=RULES)
    assert [answer.kind for answer in asked] == ["refusal"] * 5
    assert not any(answer.arrays for answer in asked)


@nightly.parametrize("knows_plan", [True, False], others=nightly.WHEN_CHANGED)
def test_a_server_that_leaves_a_site_out_has_its_reply_unless_the_sites_know_the_plan(knows_plan, recorder, tmp_path):
    """Every sum has all asked sites. In round 2 the server asks fewer, for the first model with another last bit.

    To sites without a plan both messages are different, and the difference of both sums is the fifth reply.
    """
    names, rules, sums, answers = tuple(f"site {k}" for k in range(5)), SumRules(threshold=1), [], []
    algorithm, problem = FixedPointSums(rv.fedavg(GD), weighting="uniform"), quadratic(double=False)
    full, identities, first = rv.participation.Full("uniform"), local_identities(names), {}

    def changed(name, head):
        payload = {key: np.nextafter(array, 1, dtype=array.dtype) for key, array in first[name].arrays.items()
                   if key.startswith("payload")}
        return replace(head, facts=head.facts | {"asked": [*names[:4]]}, arrays={**head.arrays, **payload})

    class Lying(InProcess):
        def broadcast(self, messages, **times):
            heads = {name: decode(bytes(message)) for name, message in messages.items()}
            (kind, number), *_ = {(head.kind, head.round) for head in heads.values()}
            if kind != "work":
                return super().broadcast(messages, **times)
            first.update(heads if number == 0 else {})
            replies = {name: self.handlers[name](encode(changed(name, head) if number else head))
                       for name, head in heads.items() if not number or name != names[4]}
            answers[:] = map(decode, replies.values())
            if all(answer.kind == "reply" for answer in answers):
                sums.append(sum(answer.arrays["masked"] for answer in answers))
            return replies

    with Federation(algorithm, problem, tmp_path, rounds=2, transport=Lying, participation=full, secure=rules) as parts:
        for k, name in enumerate(names):
            plan = PlannedWork(algorithm, full, Membership(name, names, ()), SEED, 2, 2, policy=REHEARSAL)
            secure = SecureSite(name, "run", tmp_path / f"keys of {name}", identities[name], rules, names)
            parts.start_party(k, planned=plan if knows_plan else None, secure=secure)
        with pytest.raises(FederationStoppedError):  # the fifth site is not asked
            parts.run(run="run")
    assert [answer.kind for answer in answers] == ["refusal" if knows_plan else "reply"] * 4
    if not knows_plan:
        run_in_process(algorithm, problem, rounds=1, seed=SEED, participation=full)
        (plain,) = [reply for name, head, reply in recorder.messages if (name, head.kind) == ("party 4", "work")]
        fifth = np.concatenate([array.reshape(-1, 2).copy().view("<i8").ravel() for array in plain.arrays.values()
                                if array.dtype == np.uint32])
        np.testing.assert_allclose(np.sort((sums[0] - sums[1]).view("<i8")) * 2.0**-29, np.sort(fifth) * 2.0**-29,
                                   atol=1e-5)


def test_a_reply_out_of_range_leaves_no_site(tmp_path):
    algorithm = FixedPointSums(rv.fedavg(GD), largest=2.0**-20)
    with pytest.raises(FederationStoppedError, match="out of range"):
        run_in_process(algorithm, quadratic(double=False), rounds=1, folder=tmp_path, secure=RULES)


def test_what_secure_sums_need_is_checked_at_once(tmp_path):
    problem = quadratic(double=False)
    with pytest.raises(InputError, match="FixedPointSums"):
        run_in_process(rv.fedavg(GD), problem, rounds=1, secure=RULES)
    with pytest.raises(InputError, match="do not fit together"):
        run_in_process(FixedPointSums(rv.fedavg(GD)), problem, rounds=1, secure=RULES,
                       participation=rv.participation.Full("uniform"))
    with pytest.raises(FederationStoppedError, match="clips updates"):
        run_in_process(FixedPointSums(rv.fedavg(GD)), problem, rounds=1, secure=RULES, limits=limits(clip=1.0))
