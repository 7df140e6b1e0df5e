"""A site's rights: limits, the list and the log of what leaves, clipping and noise; and what no federation runs."""

import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
import resolvent.federation
from federation.parts import Federation, limits, quadratic
from resolvent.errors import InputError
from resolvent.federation.engines.in_process import run_in_process
from resolvent.federation.protocol.events import EvaluationReport
from resolvent.federation.protocol.exchange import FederationStoppedError, RoundRules
from resolvent.federation.protocol.limits import Limits, check_parts, scored_splits
from resolvent.federation.protocol.policy import FEDERATION, REHEARSAL
from resolvent.federation.protocol.protection import protect
from resolvent.federation.protocol.stores import PartyStore
from resolvent.federation.protocol.wire import decode
from resolvent.federation.server.coordinator import Coordinator
from resolvent.federation.site.party import Party

GD = rv.solvers.GD(0.05, steps=3)

LIMITS = {
    "algorithm": (limits(algorithms=("fedprox",)), "the algorithm algorithm is not allowed; allowed: fedprox",
                  "the site allows the algorithms fedprox"),
    "solver": (limits(solvers=("SGD",)), "the solver GD is not allowed; allowed: SGD",
               "the site allows the solvers SGD"),
    "rounds": (limits(max_rounds=2), "3 rounds are more than the allowed 2",
               "the site allows at most 2 rounds of a method"),
    "steps": (limits(max_local_steps=2), "3 local steps are more than the allowed 2",
              "the site allows at most 2 local steps"),
    "rows": (limits(min_rows=10), "the site has fewer training samples than the 10",
             "the site has fewer training rows than the 10"),
}


def recorded(parts, site):
    """A list to which all that leaves a site is added."""
    sent, handler = [], parts.transport.handlers[site]

    def record(message):
        sent.append(handler(message))
        return sent[-1]

    parts.transport.handlers[site] = record
    return sent


@pytest.mark.parametrize("case", LIMITS)
def test_an_experiment_beyond_the_limits_is_refused_at_the_site(case, tmp_path):
    """The lead reads the reason, and nothing else has left."""
    allowed, reason, sentence = LIMITS[case]
    with Federation(rv.fedavg(GD), quadratic(double=False), tmp_path, limits=allowed,
                    rules=RoundRules(retries=0)) as parts:
        with pytest.raises(InputError, match=reason):
            parts.parties["site 0"].check()
        sent = recorded(parts, "site 0")
        with pytest.raises(FederationStoppedError, match=rf"site 0, .*site 4: refused \(limits\): {sentence}"):
            parts.run()
    assert {decode(data).kind for data in sent} == {"refusal"}


@pytest.mark.when_changed
def test_an_experiment_within_the_limits_runs_and_scores_stay(tmp_path):
    allowed = limits(algorithms=("algorithm",), solvers=("GD",), max_rounds=3, max_total_rounds=3, max_local_steps=7,
                     min_rows=7, scores=False)
    with Federation(rv.fedavg(GD), quadratic(double=False), tmp_path, limits=allowed) as parts:
        parts.parties["site 0"].check()
        reports = parts.run().reports
    evaluation = next(r for r in reports if isinstance(r, EvaluationReport))
    assert evaluation.personal == {}
    assert evaluation.withheld == (0, 1, 2, 3, 4)


@pytest.mark.when_changed
def test_all_that_leaves_is_listed_before(tmp_path):
    algorithm = rv.combinators.Compressed(rv.scaffold(GD), rv.codecs.QSGD())
    with Federation(algorithm, quadratic(double=False), tmp_path) as parts:
        sent = recorded(parts, "site 0")
        listed = parts.parties["site 0"].preview()
        parts.run()
    kinds = [decode(data).kind for data in sent]
    assert kinds == ["ready", "scores", "reply", "reply", "reply", "scores", "stored"]
    replies = [decode(data) for data in sent if decode(data).kind == "reply"]
    arrays = {d.name: d.bytes for d in listed if d.message.startswith("reply")}
    assert all({name: a.nbytes for name, a in reply.arrays.items()} == arrays for reply in replies)
    assert {d.name for d in listed if d.message == "ready"} == {"number of training samples"}
    assert {d.name: d.bytes for d in listed if d.message.startswith("scores")} == dict.fromkeys(
        (f"loss, objective on train of the {model} model" for model in ("personal", "shared")), 16)


def test_clipping_bounds_the_update_from_the_model_of_the_server():
    algorithm, model = rv.fedavg(GD), {"w": np.ones(4, np.float32), "b": np.zeros(2, np.float32)}
    reply = jax.tree.map(lambda leaf: leaf + np.float32(3), model)
    sent = protect(reply, model, algorithm, clip=0.5, noise=0.0)
    update = np.concatenate([np.ravel(sent[name] - model[name]) for name in model])
    np.testing.assert_allclose(update, 0.5 / np.sqrt(6), rtol=1e-5)
    assert protect(reply, model, algorithm, clip=100.0, noise=0.0) is reply
    difference = protect(reply, model, rv.scaffold(GD), clip=0.5, noise=0.0)  # replies are no models
    assert np.isclose(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in difference.values())), 0.5)


def test_noise_has_the_standard_deviation_and_is_drawn_at_the_site():
    algorithm, model = rv.fedavg(GD), np.zeros(20_000, np.float32)
    first, second = (protect(model, model, algorithm, clip=2.0, noise=0.5) for _ in range(2))
    assert abs(float(np.std(first)) - 1) < 0.03
    assert not np.array_equal(first, second)
    assert first.dtype == np.float32


def test_a_protected_run_is_marked_and_a_repeated_message_gets_no_other_noise(tmp_path):
    with Federation(rv.fedavg(GD), quadratic(double=False), tmp_path, limits=limits(clip=0.1, noise=1.0)) as parts:
        handler = parts.transport.handlers["site 0"]

        def twice(message):
            first = handler(message)
            assert decode(message).kind != "work" or handler(message) == first
            return first

        parts.transport.handlers["site 0"] = twice
        assert parts.run().record.protected == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("compressed", [rv.combinators.Compressed, rv.combinators.CompressedMessages])
def test_a_reply_cannot_be_clipped_after_a_compression(compressed, tmp_path):
    algorithm = compressed(rv.fedavg(GD), rv.codecs.QSGD())
    with (Federation(algorithm, quadratic(double=False), tmp_path, limits=limits(clip=0.1)) as parts,
          pytest.raises(InputError, match="not possible after their compression")):
        parts.parties["site 0"].check()


def own_apply(params, x):
    return x @ params


class OwnSolver(rv.solvers.GD):
    pass


REFUSED = {
    "pooled data": (lambda: rv.pooled(GD), "pooled samples"),
    "an attack": (lambda: rv.attacked(rv.fedavg(GD), rv.attacks.NaN(), share=0.4), "malicious"),
    "a class of the user": (lambda: rv.fedavg(OwnSolver(0.1)), "OwnSolver, which is not a part of the library"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_federation_does_not_run(case):
    build, reason = REFUSED[case]
    with pytest.raises(InputError, match=reason):
        Coordinator(build(), lambda key: jnp.zeros(3), None, None, rounds=1)
    check_parts(build(), REHEARSAL)


@pytest.mark.parametrize("make", [rv.fedavg, rv.scaffold, rv.rfa, rv.fedadam, rv.fedpi, rv.ditto, rv.apfl])
def test_algorithms_of_the_library_are_trusted(make):
    check_parts(make(GD), FEDERATION)


def test_limits_that_make_no_sense_are_refused():
    for settings in ({"clip": 0.0}, {"clip": 1.0, "noise": -1.0}, {"noise": 1.0}):
        with pytest.raises(InputError):
            Limits(**settings)


@pytest.mark.when_changed
def test_a_process_of_a_party_is_light():
    """It imports no command line, no plotting and no tables."""
    heavy = ["matplotlib", "pandas", "pydantic", "rich", "tyro", "ruamel", "resolvent.cli", "resolvent.comparisons"]
    program = f"import sys, resolvent.federation.site.party\nprint([n for n in {heavy} if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert result.stdout.strip() == "[]"


def test_nothing_is_pickled_and_no_code_is_executed():
    for path in Path(resolvent.federation.__file__).parent.rglob("*.py"):
        code = path.read_text("utf-8")
        assert not re.search(r"\b(import (pickle|marshal|shelve|dill)|(eval|exec)\(|allow_pickle)", code), path.name


@pytest.mark.when_changed
@nightly.parametrize("policy", [FEDERATION, REHEARSAL])
def test_the_server_does_not_know_the_noise_of_a_private_algorithm(tmp_path, policy):
    """The same seed gives other models, except in a rehearsal, which repeats the simulation."""
    algorithm = rv.fedavg(rv.solvers.DPSGD(0.05, noise_multiplier=1.0, batch_size=4, steps=2))
    models = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        with Federation(algorithm, quadratic(double=False), folder) as parts:
            for k in range(5):
                parts.start_party(k, policy=policy)
            result = parts.run()
            models.append(np.asarray(result.shared))
            assert result.record.protected == (() if policy is REHEARSAL else (0, 1, 2, 3, 4))
    assert np.array_equal(*models) == (policy is REHEARSAL)


@pytest.mark.when_changed
@nightly.parametrize(("algorithm", "choice", "has_training"), [
    (rv.combinators.PrivateParties(rv.fedavg(rv.SGD(0.05, batch_size=4)), cohort=2.0), None, False),
    (rv.fedavg(rv.solvers.DPSGD(0.05, batch_size=4, steps=1)), None, False),
    (rv.fedavg(rv.SGD(0.05, batch_size=4)), None, True),
    (rv.fedavg(rv.solvers.DPSGD(0.05, batch_size=4, steps=1)), True, True),
    (rv.fedavg(rv.SGD(0.05, batch_size=4)), False, False),
], ids=["PrivateParties", "DPSGD", "SGD", "DPSGD, turned on", "SGD, turned off"], others=nightly.WHEN_CHANGED)
def test_exact_scores_on_training_rows_of_a_private_method_stay_at_the_site(tmp_path, algorithm, choice, has_training):
    rng = np.random.default_rng(0)
    data = rv.FederatedData.from_arrays([rng.normal(size=(20, 2)) for _ in range(2)],
                                        [rng.integers(0, 2, 20) for _ in range(2)], validation=0.2, test=0.2,
                                        classes=["0", "1"])
    problem = rv.problems.LearningProblem(rv.models.logistic(2, 2), data)
    allowed = limits(training_scores=choice)
    result = run_in_process(algorithm, problem, rounds=1, folder=tmp_path / "run", limits=allowed)
    is_loss = result.metrics["metric"].isin(["loss", "global_loss"])
    assert set(result.metrics.loc[is_loss, "split"]) == {"validation", "test", *["train"] * has_training}
    with PartyStore(tmp_path / "party") as store:
        party = Party(algorithm, problem.of_party(0), store, rounds=1, name="a", limits=allowed)
        listed = [departure.name for departure in party.preview() if departure.message.startswith("scores")]
    assert all(("train" in name) == has_training for name in listed)
    assert listed


@nightly.parametrize(("method", "choice", "leave"), [
    (rv.fedavg_plus, None, False), (rv.fedavg_plus, True, True), (rv.fedavg, None, True)],
    others=nightly.WHEN_CHANGED)
def test_scores_of_personal_models_that_nothing_protects_stay_at_the_site(method, choice, leave):
    """A personal model of ``PrivateParties`` has no noise, so that its score on any split shows training rows."""
    algorithm = rv.combinators.FixedPointSums(rv.combinators.PrivateParties(
        method(rv.SGD(0.05, batch_size=4)), cohort=2.0, noise="parties"), weighting="uniform")
    splits = scored_splits(limits(training_scores=choice), algorithm, ["train", "validation", "test"])
    assert ("test" in splits) == leave
    assert ("train" in splits) == bool(choice)
