"""SharedUntilTrained: absent parties use the shared model; rounds, and the models of all others, are unchanged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SEED, equal, personal_models, quadratic, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms.description import describe
from resolvent.testing.python_loop import draw_cohort

KEEP, DROP = (rv.participation.Stragglers(rv.participation.Uniform(2), share=0.5, work=work)
              for work in ("keep", "drop"))
SOLVER = rv.solvers.GD(0.1, steps=4)


@pytest.mark.when_changed
@nightly.parametrize(("inner", "participation"), [
    (rv.ditto(SOLVER), KEEP),
    (rv.combinators.MetaLearned(rv.feddane(SOLVER), step=rv.problems.GradientStep(0.1)), DROP),  # two phases
    (rv.fedavg_plus(SOLVER), KEEP),
], ids=["two models", "two phases, stragglers dropped", "one phase"])
def test_a_party_uses_the_shared_model_until_its_work_has_counted(inner, participation):
    problem = quadratic()
    until_trained = rv.combinators.SharedUntilTrained(inner)
    plain, states = (trajectory(a, problem, 3, participation) for a in (inner, until_trained))
    has_trained = np.zeros(problem.parties, bool)
    for t, (before, state) in enumerate(zip(plain, states, strict=True)):
        if t:
            _, cohort = draw_cohort(participation, problem.sizes, SEED, t - 1)
            counts = cohort.alive & (~cohort.late | (participation.work == "keep"))
            has_trained[np.asarray(cohort.index)[np.asarray(counts)]] = True
        equal(state.server.inner, before.server)
        equal(state.parties.inner, before.parties)
        shared = np.broadcast_to(inner.server_model(before.server), (problem.parties, 4))
        expected = np.where(has_trained[:, None], personal_models(inner, problem, before), shared)
        np.testing.assert_array_equal(personal_models(until_trained, problem, state), expected)
    assert has_trained.any()
    assert not has_trained.all()


@pytest.mark.parametrize("inner", [rv.local(SOLVER), rv.fedavg(SOLVER)], ids=["no shared model", "no personal models"])
def test_other_algorithms_keep_their_models_and_cost(inner):
    problem, until_trained = quadratic(), rv.combinators.SharedUntilTrained(inner)
    w0, oracle, key = problem.init(jax.random.key(0)), problem.oracle(jnp.array(0)), jax.random.key(1)
    shares, k = jnp.full(problem.parties, 1 / problem.parties), jnp.array(0)
    models = [a.personal_model(a.init_party(w0 + 1, oracle, key), a.model_message(a.init(w0, shares), k), oracle)
              for a in (inner, until_trained)]
    np.testing.assert_array_equal(*models)
    one_evaluation = [describe(a, problem).uses_shared_model for a in (inner, until_trained)]
    assert one_evaluation[0] == one_evaluation[1]
