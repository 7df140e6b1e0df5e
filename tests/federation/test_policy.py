"""Each field of the policy of a federation refuses, or keeps secret, what that of a rehearsal allows."""

import dataclasses

import numpy as np
import pytest

import resolvent as rv
from federation.harness import EXPERIMENT, Consortium, answer_of, request_bytes
from federation.parts import Federation, quadratic
from resolvent.errors import InputError
from resolvent.federation.lead.lead import _continue_or_begin, _write_note
from resolvent.federation.protocol.experiment import experiment_from_text
from resolvent.federation.protocol.limits import check_parts, read_refusal
from resolvent.federation.protocol.names import library_version
from resolvent.federation.protocol.policy import FEDERATION, REHEARSAL, VARIABLE, policy_of_process
from resolvent.federation.protocol.refusals import Refusal
from resolvent.federation.secure.primitives import local_identities
from resolvent.federation.site.planned_work import Membership, PlannedWork
from resolvent.federation.site.site import Site

GD = rv.solvers.GD(0.1)
POLICIES = pytest.mark.parametrize("policy", [FEDERATION, REHEARSAL], ids=lambda policy: policy.name)


def test_no_field_of_a_federation_is_that_of_a_rehearsal(monkeypatch):
    for field in dataclasses.fields(FEDERATION):
        assert getattr(FEDERATION, field.name) != getattr(REHEARSAL, field.name)
    for value in (None, "", "1", "true", "Rehearsal", "federation"):
        if value is None:
            monkeypatch.delenv(VARIABLE, raising=False)
        else:
            monkeypatch.setenv(VARIABLE, value)
        assert policy_of_process() is FEDERATION
    monkeypatch.setenv(VARIABLE, REHEARSAL.name)
    assert policy_of_process() is REHEARSAL


@POLICIES
def test_a_plan_without_a_signature_is_refused(policy, tmp_path):
    def verify(content, signature):
        raise InputError("the plan has no signature")

    consortium = Consortium(tmp_path, policy=policy)
    site = Site("aachen", tmp_path / "aachen", consortium.files["aachen"], verify=verify, policy=policy,
                identity=local_identities(["aachen"])["aachen"])
    job = consortium.job()
    answer = answer_of(site.handle(request_bytes("describe", run=job.run, experiment=job.experiment, party=0,
                                                 sites=[*job.sites], version=library_version())))
    assert read_refusal(answer["refused"])[1].startswith("refused (not signed)")


@POLICIES
def test_only_a_rehearsal_runs_parts_from_elsewhere(policy, tmp_path, monkeypatch):
    attacked = rv.attacked(rv.fedavg(GD), rv.attacks.NaN(), share=0.4)
    (tmp_path / "mine.py").write_text("import resolvent as rv\ndef network():\n    return rv.models.linear()\n")
    monkeypatch.chdir(tmp_path)
    own = EXPERIMENT.replace("model: logistic", "model: mine.py:network")
    if policy is REHEARSAL:
        check_parts(attacked, policy)
        assert experiment_from_text(own, "mine", policy=policy).policy is policy
    else:
        with pytest.raises(InputError, match="makes some of its parties malicious"):
            check_parts(attacked, policy)
        with pytest.raises(InputError, match="does not allow it"):
            experiment_from_text(own, "mine", policy=policy)


@POLICIES
def test_the_seed_gives_the_noise_and_the_cohorts_of_a_rehearsal_only(policy, tmp_path):
    private = rv.combinators.PrivateParties(rv.fedavg(GD), cohort=5.0, clip=0.5, noise_multiplier=2.0)
    runs = []
    for folder in ("first", "second"):
        with Federation(private, quadratic(double=False), tmp_path / folder, policy=policy, rounds=12,
                        participation=rv.participation.Bernoulli(0.5)) as parts:
            result = parts.run()
        runs.append((result.shared, [report.asked for report in result.reports if hasattr(report, "asked")]))
    (model, cohorts), (other_model, other_cohorts) = runs
    assert np.array_equal(model, other_model) != policy.has_secret_noise
    assert (cohorts == other_cohorts) != policy.has_secret_noise


@POLICIES
def test_the_first_model_is_scored_in_a_rehearsal_only(policy):
    plan = PlannedWork(rv.fedavg(GD), rv.participation.Full(), Membership("b", ("a", "b"), ()), 0, 4, 2, policy)
    if policy.scores_first_model:
        plan.check_evaluation(0)
    else:
        with pytest.raises(Refusal, match="no evaluation after 0 rounds"):
            plan.check_evaluation(0)


@POLICIES
def test_the_rows_are_divided_by_a_secret_except_in_a_rehearsal(policy, tmp_path):
    consortium = Consortium(tmp_path, policy=policy)
    consortium.serve()
    assert (tmp_path / "aachen" / "table.versions").is_dir() == policy.has_own_splits


@POLICIES
def test_an_unfinished_run_is_continued_except_in_a_rehearsal(policy, tmp_path):
    consortium = Consortium(tmp_path)
    plan, path = dataclasses.replace(consortium.experiment, policy=policy), tmp_path / "job.json"
    first = _continue_or_begin(path, consortium.job(), plan, has_sites=False)
    _write_note(path, first.job, ["job 1"])
    again = _continue_or_begin(path, consortium.job(), plan, has_sites=False)
    assert (again.job.run == first.job.run) == policy.continues_runs
