"""Every release has noise of its own: no composition draws it twice with one key."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract_rows import ALL_ROWS, SAME
from helpers import classification, trajectory

import nightly
import resolvent as rv
from resolvent import testing
from resolvent.algorithms.combinators.combinator import Combinator
from resolvent.algorithms.method import local_work

DPSGD = rv.solvers.DPSGD


class SolvesTwice(Combinator):
    """Also solves from the message, with a key that a test chooses."""

    solver: rv.solvers.LocalSolver
    key: object = eqx.field(static=True)

    def party(self, inner, state, message, oracle, key, effort, phase):
        after, reply, info = super().party(inner, state, message, oracle, key, effort, phase)
        model = message.inner
        w, _ = local_work(self.solver, rv.problems.Subproblem(oracle, model), model, self.key(key, reply), effort)
        return after, jax.tree.map(jnp.add, reply, w), info


class Repeats(Combinator):
    """Solves three times from the message, each time with a key that a test chooses."""

    solver: rv.solvers.LocalSolver
    key: object = eqx.field(static=True)
    count: object = eqx.field(static=True)

    def party(self, inner, state, message, oracle, key, effort, phase):
        first_key, model = jax.random.fold_in(key, 99), message.inner
        after, reply, info = super().party(inner, state, message, oracle, first_key, effort, phase)

        def add(i, total):
            w, _ = local_work(self.solver, rv.problems.Subproblem(oracle, model), model, self.key(key, i), effort)
            return jax.tree.map(jnp.add, total, w)

        return after, jax.lax.fori_loop(0, self.count(reply), add, reply), info


class TwoPhases(Combinator):
    """Every round is two rounds of the inner algorithm."""

    @property
    def phases(self):
        return 2 * self.inner.phases

    def init(self, w0, shares):
        return self.inner.init(w0, shares)

    def init_party(self, w0, oracle, key):
        return self.inner.init_party(w0, oracle, key)

    def model_message(self, state, k):
        return self.inner.model_message(state, k)

    def personal_model(self, state, message, oracle):
        return self.inner.personal_model(state, message, oracle)

    def server_model(self, state):
        return self.inner.server_model(state)


@pytest.mark.when_changed
def test_the_two_models_of_an_interpolation_have_different_noise():
    """From one model, without clipping: with the same noise both models would be the same."""
    solver = DPSGD(0.1, clip=1.0, noise_multiplier=2.0, batch_size=100, steps=2)
    state = trajectory(rv.model_interpolation(solver, rv.fedgeomed_plus(solver, sigma=0.0)), classification(), 1)[-1]
    local, joint = (np.asarray(model["weight"]) for model in (state.parties.extra.value, state.parties.inner))
    noise = 2.0 * 0.1 * 1.0 / 100  # of one step
    assert np.std(local - joint) > noise


@pytest.mark.nightly
def test_without_noise_the_model_of_the_interpolation_is_that_of_training_alone():
    solver, problem = rv.SGD(0.1, batch_size=4, epochs=1), classification()
    interpolated = trajectory(rv.model_interpolation(solver, rv.fedavg(solver)), problem, 2)[-1]
    alone = trajectory(rv.local(solver), problem, 2)[-1]
    np.testing.assert_array_equal(interpolated.parties.extra.value["weight"], alone.parties["weight"])


@nightly.parametrize("solver", [DPSGD(0.1, batch_size=4, steps=2), rv.SGD(0.1, batch_size=4, epochs=1)],
                     ids=["DPSGD", "SGD"], per_commit=0)
def test_equal_candidates_are_equal_only_without_noise(solver):
    algorithm = rv.combinators.HeldOutSelection(rv.ditto(solver), (rv.ditto(solver),))
    models = np.asarray(trajectory(algorithm, classification(), 1)[-1].parties.inner["weight"])
    assert np.array_equal(models[:, 0], models[:, 1]) == (not solver.adds_noise)


@pytest.mark.parametrize(("algorithm", "message"), [
    (lambda s: SolvesTwice(rv.fedavg(s), s, lambda key, reply: key), "2 times in a round with 1 different keys"),
    (lambda s: SolvesTwice(rv.fedavg(s), s, lambda key, reply: jax.random.key(0)), "the same in several rounds"),
    (lambda s: SolvesTwice(rv.fedavg(s), s, lambda key, reply: jax.random.fold_in(
        key, reply["w"][0].astype(int))), "with a key that depends on a state"),
    (lambda s: Repeats(rv.fedavg(s), s, lambda key, i: key, lambda reply: 3), "4 times in a round with 2 different"),
    (lambda s: Repeats(rv.fedavg(s), s, jax.random.fold_in, lambda reply: reply["w"][0].astype(int)),
     "in a loop whose length depends on a state"),
], ids=["same key", "constant key", "key of the model", "same key in a loop", "length of the model"])
def test_compositions_whose_releases_share_noise_are_refused(algorithm, message):
    with pytest.raises(rv.InputError, match=message):
        rv.privacy.check_private_records(algorithm(DPSGD(0.1)), {"w": jnp.zeros(3)})


def test_two_phases_and_loops_are_accounted_for():
    solver, w0 = DPSGD(0.1), {"w": jnp.zeros(3)}
    own_keys = Repeats(rv.fedavg(solver), solver, jax.random.fold_in, lambda reply: 3)
    assert rv.privacy.check_private_records(own_keys, w0).calls == 4
    assert rv.privacy.check_private_records(TwoPhases(rv.fedavg(solver)), w0).calls == 2


@pytest.mark.when_changed
def test_no_preset_draws_noise_twice_with_one_key():
    failures = []
    for name, make in (ALL_ROWS | {same: make for same, (make, _) in SAME.items()}).items():
        try:
            testing.check_noise_keys(make)
        except AssertionError as error:
            failures.append(f"{name}: {error}")
    assert not failures, "\n".join(failures)


def test_the_contract_names_the_shared_key():
    with pytest.raises(AssertionError, match="their difference reveals the samples"):
        testing.check_noise_keys(lambda s: SolvesTwice(rv.fedavg(s), s, lambda key, reply: key))
