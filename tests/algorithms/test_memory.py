"""Memory of local work across rounds: optimizer states and oracles' memories, kept as private states of the parties."""

from dataclasses import fields, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import resolvent as rv
from resolvent.algorithms.combinators.prepared import with_memory
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem
from resolvent.simulator.engine.rounds import compiled_programs, run_rounds
from resolvent.testing.contract import check_compiles_once
from resolvent.testing.python_loop import python_rounds

RATE = 0.1
ModelState = rv.combinators.ModelState


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class Drift(Problem):
    """f_k(w) = |w - centres[k] t|^2 / 2 in round t, NaN in round ``broken``; oracles count their minibatches."""

    centres: jax.Array
    t: jax.Array
    broken: jax.Array

    @classmethod
    def make(cls, parties=3, broken=-1):
        centres = jnp.asarray(np.random.default_rng(0).normal(size=(parties, 2)))
        return cls(sizes=jnp.ones(parties, int), splits=("train",), score_name="count", higher_is_better=False,
                   centres=centres, t=jnp.array(0), broken=jnp.array(broken))

    def at(self, t):
        return replace(self, t=t)

    def init(self, key):
        return jnp.zeros(2)

    def oracle(self, k):
        centre = jnp.where((self.t == self.broken) & (k == 0), jnp.nan, self.centres[k] * self.t)
        return Counting(jnp.array(1), centre)

    def split_sizes(self, split):
        return self.sizes

    def evaluate_party(self, w, k, split):
        return self.oracle(k).value(w), jnp.zeros(())


class Held(Drift):
    """Its parties can choose between models."""

    @classmethod
    def of(cls, problem):
        return cls(**{f.name: getattr(problem, f.name) for f in fields(problem)})

    def oracle(self, k):
        return Scored(jnp.array(1), super().oracle(k).centre)


class Counting(Oracle):
    centre: jax.Array

    def value(self, w):
        return jnp.sum((w - self.centre) ** 2) / 2

    def grad(self, w):
        return w - self.centre

    def init_memory(self, w):
        return jnp.array(0)

    def batch_grad(self, w, positions, mask, memory=()):
        return self.grad(w), memory if isinstance(memory, tuple) else memory + 1


class Scored(Counting):
    def held_out(self, w):
        return self.value(w), -self.value(w)


def adam(keep, steps=2):
    return rv.solvers.adam(RATE, batch_size=1, steps=steps, keep=keep)


def expected_fedavg(problem, rounds, cohorts, steps=2):
    """FedAvg with Adam's states kept by the parties, as a plain loop over optax."""
    w, states = jnp.zeros(2), {}
    for t in range(rounds):
        replies = []
        for k in cohorts[t]:
            v, state = w, states.get(k, optax.adam(RATE).init(w))
            for _ in range(steps):
                update, state = optax.adam(RATE).update(v - problem.centres[k] * t, state, v)
                v = v + update
            states[k] = state
            replies.append(v)
        w = jnp.mean(jnp.stack(replies), axis=0)
    return w, states


@pytest.mark.when_changed
def test_parties_keep_the_moments_of_adam_while_they_are_absent():
    problem, participation = Drift.make(), rv.participation.Uniform(cohort=2)
    result = rv.simulate(rv.fedavg(adam(True)), problem, rounds=5, participation=participation, progress=False)
    cohorts = [np.unique(rows) for rows in _cohorts(problem, participation, 5)]
    w, states = expected_fedavg(problem, 5, cohorts)
    np.testing.assert_allclose(result.server_model, w, atol=1e-12)
    memory = result.state.parties.extra.memory.value[""]
    for k, state in states.items():
        for actual, expected in zip(jax.tree.leaves(memory.solver), jax.tree.leaves(state), strict=True):
            np.testing.assert_allclose(actual[k], expected, atol=1e-12)
    np.testing.assert_array_equal(memory.oracle, [2 * sum(k in c for c in cohorts) for k in range(3)])


@pytest.mark.when_changed
def test_without_keep_the_moments_start_again_in_each_round():
    problem, rounds = Drift.make(), 5
    kept, _ = expected_fedavg(problem, rounds, [range(3)] * rounds)
    reset = rv.simulate(rv.fedavg(adam(False)), problem, rounds=rounds, progress=False)
    assert np.abs(reset.server_model - kept).max() > 1e-3


def _cohorts(problem, participation, rounds):
    from resolvent.testing.python_loop import draw_cohort

    return [np.asarray(draw_cohort(participation, problem.sizes, 0, t)[1].index) for t in range(rounds)]


@pytest.mark.nightly
def test_the_simulator_and_a_plain_loop_over_parties_agree():
    problem, algorithm = Drift.make(), rv.fedavg_plus(adam(True))
    participation = rv.participation.Stragglers(rv.participation.Uniform(cohort=2), share=0.5)
    states = python_rounds(algorithm, problem, participation, 7, 4)
    final = run_rounds(algorithm, problem, participation, seed=7, rounds=4, scheduler="lanes")
    for a, b in zip(jax.tree.leaves(final), jax.tree.leaves(states[-1]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)


@pytest.mark.when_changed
def test_checkpoints_have_the_memory(tmp_path):
    problem, algorithm = Drift.make(), rv.fedavg(adam(True))
    options = {"progress": False, "evaluate_every": 2}
    whole = rv.simulate(algorithm, problem, rounds=6, **options)
    rv.simulate(algorithm, problem, rounds=4, checkpoint=tmp_path / "run", **options)
    resumed = rv.simulate(algorithm, problem, rounds=6, checkpoint=tmp_path / "run", resume=True, **options)
    assert resumed.digest == whole.digest


def test_a_round_that_diverges_does_not_spoil_the_memory():
    """The reply of party 0 is not finite in round 1. Its memory is the one before, and it takes part in round 2."""
    broken = rv.simulate(rv.fedavg(adam(True)), Drift.make(broken=1), rounds=3, progress=False)
    assert broken.refused == {"0": 1}
    w, _ = expected_fedavg(Drift.make(), 3, [[0, 1, 2], [1, 2], [0, 1, 2]])
    np.testing.assert_allclose(broken.server_model, w, atol=1e-12)


def test_the_memory_is_private_a_finite_reply_that_is_refused_renews_it():
    class Weightless(rv.participation.Full):
        def draw(self, state, key, t, sizes):
            cohort, after = super().draw(state, key, t, sizes)
            return replace(cohort, weight=jnp.zeros_like(cohort.weight)), after

    state = run_rounds(rv.fedavg(adam(True)), Drift.make(), Weightless(), rounds=2)
    np.testing.assert_array_equal(state.server.inner, 0)
    np.testing.assert_array_equal(state.parties.extra.memory.value[""].oracle, [4, 4, 4])


@pytest.mark.nightly
def test_without_a_memory_nothing_changes_and_nothing_compiles_again():
    problem = rv.problems.QuadraticProblem.least_squares(np.eye(2)[None], np.ones((1, 2)))
    algorithm = rv.fedavg(rv.SGD(0.1, steps=2))
    assert with_memory(algorithm, problem) is algorithm
    first = run_rounds(algorithm, problem)
    before = compiled_programs()
    wrapped = run_rounds(ModelState(algorithm, None), problem)  # an empty memory adds no numbers
    assert len(jax.tree.leaves(wrapped)) == len(jax.tree.leaves(first))
    jax.tree.map(np.testing.assert_array_equal, wrapped.server.inner, first.server)
    run_rounds(algorithm, problem)
    assert compiled_programs() == before + 1  # that of the explicit combinator


@pytest.mark.nightly
def test_numbers_of_a_solver_with_memory_do_not_compile_again():
    check_compiles_once(lambda solver: ModelState(rv.fedavg(rv.OptaxSolver(
        rv.solvers.traced_optimizer(optax.adam, learning_rate=solver.learning_rate), steps=2, keep=True)), None))


@pytest.mark.when_changed
def test_each_local_work_of_a_party_has_its_own_moments():
    """Ditto, whose parties train the shared and the personal model, with the moments of two Adams."""
    problem, lam, steps, rounds = Drift.make(), 0.3, 2, 4
    result = rv.simulate(rv.ditto(adam(True, steps), lam=lam), problem, rounds=rounds, progress=False)
    w, v = jnp.zeros(2), [jnp.zeros(2)] * 3
    of_w, of_v = ([optax.adam(RATE).init(w)] * 3 for _ in range(2))
    for t in range(rounds):
        replies = []
        for k in range(3):
            reply = w
            for _ in range(steps):
                update, of_w[k] = optax.adam(RATE).update(reply - problem.centres[k] * t, of_w[k], reply)
                reply = reply + update
                update, of_v[k] = optax.adam(RATE).update(v[k] - problem.centres[k] * t + lam * (v[k] - w), of_v[k])
                v[k] = v[k] + update
            replies.append(reply)
        w = jnp.mean(jnp.stack(replies), axis=0)
    np.testing.assert_allclose(result.server_model, w, atol=1e-12)
    for k in range(3):
        np.testing.assert_allclose(result.personal_model(k), v[k], atol=1e-12)


@pytest.mark.when_changed
def test_the_moments_of_adam_go_through_the_steps_of_pfedme_and_through_candidates():
    """One solve per step on the envelope, with the same moments; each candidate has moments of its own."""
    problem, lam, eta = Drift.make(parties=1), 2.0, 0.4
    result = rv.simulate(rv.pfedme(adam(True, 1), lam=lam, eta=eta, steps=3), problem, rounds=3, progress=False)
    w, state = jnp.zeros(2), optax.adam(RATE).init(jnp.zeros(2))
    for t in range(3):
        theta = w
        for _ in range(3):
            update, state = optax.adam(RATE).update(theta - problem.centres[0] * t + lam * (theta - w), state)
            theta = theta + update
            w = w - eta * lam * (w - theta)
    np.testing.assert_allclose(result.server_model, w, atol=1e-12)

    first, second = (rv.fedplus(adam(True), rv.penalties.L2Norm(), sigma=sigma, delta=0.5) for sigma in (0.5, 2.0))
    both = rv.simulate(rv.combinators.HeldOutSelection(first, (second,)), Held.of(Drift.make()), rounds=3,
                       progress=False).state.parties
    alone = rv.simulate(first, Drift.make(), rounds=3, progress=False).state.parties
    for name, kept in alone.extra.memory.value.items():
        jax.tree.map(np.testing.assert_array_equal, both.extra.memory.value[name], kept)
    moments = both.extra.memory.value["other candidates: "].solver
    assert jax.tree.leaves(moments)[0].shape[:2] == (3, 1)
    np.testing.assert_array_equal(jax.tree.leaves(moments)[0], 6)  # Adam's count: two steps in each of three rounds


class Twice(rv.combinators.Combinator):
    """Works again without a name of its own."""

    def party(self, inner, state, message, oracle, key, effort, phase):
        super().party(inner, state, message, oracle, key, effort, phase)
        return super().party(inner, state, message, oracle, key, effort, phase)


class Forgetful(rv.combinators.Combinator):
    """Returns no info of its local work."""

    def party(self, inner, state, message, oracle, key, effort, phase):
        after, reply, info = super().party(inner, state, message, oracle, key, effort, phase)
        return after, reply, {"model": info["model"]}


@pytest.mark.parametrize(("combinator", "message"), [
    (Twice, "ModelAggregation works 2 times with a local solver in one phase, and two works have one name"),
    (Forgetful, "does not hand on the memory of its local work"),
])
def test_methods_that_lose_a_memory_are_refused(combinator, message):
    with pytest.raises(rv.InputError, match=message):
        rv.simulate(combinator(rv.fedavg(adam(True))), Drift.make(), rounds=1, progress=False)


@pytest.mark.when_changed
def test_implicit_steps_of_sgd_and_the_moments_of_adam():
    """kappa (w + update(g)) + (1 - kappa) c; with plain SGD it is the implicit step of rv.SGD."""
    problem = rv.problems.QuadraticProblem.least_squares(np.eye(2)[None] * 1.3, np.ones((1, 2)))
    centre, start = jnp.array([2.0, -1.0]), jnp.array([0.5, 0.5])
    sub = rv.problems.Subproblem(problem.oracle(0), centre, 0.7)
    args = (sub, start, jax.random.key(0), jnp.array(1.0))
    implicit = rv.solvers.momentum(0.1, decay=0.0, steps=4, proximal="implicit")(*args)[0]
    np.testing.assert_allclose(implicit, rv.SGD(0.1, steps=4)(*args)[0], atol=1e-14)
    state, w, kappa = optax.adam(0.1).init(start), start, 1 / (1 + 0.1 * 0.7)
    for _ in range(4):
        update, state = optax.adam(0.1).update(sub.smooth(w), state)
        w = kappa * (w + update) + (1 - kappa) * centre
    np.testing.assert_allclose(rv.solvers.adam(0.1, steps=4, proximal="implicit")(*args)[0], w, atol=1e-14)
    with pytest.raises(rv.InputError, match="needs the learning rate of the optimizer as a number"):
        rv.OptaxSolver(optax.adam(0.1), steps=1, proximal="implicit")


@pytest.mark.when_changed
def test_several_scores_are_metrics_of_a_run():
    class Scored(Drift):
        def report(self, w, k, split):
            return {"loss": self.oracle(k).value(w), "count": jnp.zeros(()), "size": jnp.sum(w) + k}

    problem = Scored(**{f.name: getattr(Drift.make(), f.name) for f in Drift.__dataclass_fields__.values()})
    result = rv.simulate(rv.fedavg(rv.SGD(0.1, steps=1)), problem, rounds=2, progress=False)
    np.testing.assert_allclose(result.scores("train", "size").iloc[-1], result.server_model.sum() + np.arange(3))
    assert {"loss", "count", "size", "global_size"} <= set(result.metrics["metric"])
    assert eqx.tree_equal(problem.at(jnp.array(0)).t, jnp.array(0))
