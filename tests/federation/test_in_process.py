"""A federation whose messages are encoded and decoded follows the trajectory of the simulator."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from algorithms.compositions import sample
from algorithms.contract_rows import ALL_ROWS
from federation.parts import ROUNDS, SEED, Federation, check_trajectory, classification, quadratic
from resolvent.algorithms.algorithm import Phase
from resolvent.algorithms.method import SharedModelMethod, local_work
from resolvent.federation.engines.in_process import run_in_process
from resolvent.federation.protocol.wire import decode
from resolvent.math import tree
from resolvent.problem.subproblem import Subproblem
from resolvent.testing import example_participation, example_problem, example_solver

GD = rv.solvers.GD(0.05, steps=3)
STRAGGLERS = example_participation(parties=5)

# One of each kind: party states, phases, codecs, messages that differ by party, histories, personal models, refusals.
KINDS = {
    "party states of two kinds": lambda: rv.scaffold(GD),
    "two phases, compressed": lambda: rv.combinators.CompressedMessages(
        rv.combinators.Compressed(rv.feddane(GD), rv.codecs.QSGD(4)), rv.codecs.TopK(k=3)),
    "splitting with Anderson at the server": lambda: rv.combinators.Anderson(rv.fedpi(GD, eta=0.5)),
    "Anderson at the parties": lambda: rv.combinators.DecentralisedAnderson(rv.fedpi(GD, eta=0.5, decentralised=True)),
    "personal models, robust, refused replies": lambda: rv.attacked(
        rv.fedcomed_plus(GD, sigma=0.5, delta=0.1), rv.attacks.NaN(), share=0.4),
    "personal models around a geometric median, refused replies": lambda: rv.attacked(
        rv.fedgeomed_plus(GD, lam=0.3), rv.attacks.NaN(), share=0.4),
    "memory of the solver": lambda: rv.fedavg(rv.solvers.adam(0.05, batch_size=4, keep=True), stragglers="drop"),
}
EVERY_COMMIT = ["personal models, robust, refused replies"]


@nightly.parametrize("kind", sorted(KINDS, key=EVERY_COMMIT.__contains__, reverse=True), per_commit=len(EVERY_COMMIT),
                     others=nightly.WHEN_CHANGED)
def test_one_of_each_kind_follows_the_simulator(kind, tmp_path):
    with jax.enable_x64(True):
        check_trajectory(KINDS[kind](), quadratic(), STRAGGLERS, tmp_path)


class FollowsRate(SharedModelMethod):
    """Every function reads the learning rate of the solver, which has a schedule."""

    solver: rv.solvers.GD
    replies_models: ClassVar[bool] = True
    needs_individual_replies: ClassVar[bool] = False

    @property
    def phases(self):
        def message(shared, k):
            return shared, self.solver.learning_rate * jnp.ones_like(shared)

        return (Phase(message, self.party, self.server, lambda message: message[0]),)

    def party(self, state, message, oracle, key, effort):
        w, info = local_work(self.solver, Subproblem(oracle, message[0]), message[0] + message[1], key, effort)
        return state, w, info

    def server(self, shared, replies, key):
        return tree.lerp(shared, replies.mean(), 10 * self.solver.learning_rate), {}

    def personal_model(self, state, message, oracle):
        return message[0]


@pytest.mark.when_changed
def test_all_functions_follow_the_schedule_of_a_learning_rate(tmp_path):
    solver = rv.solvers.GD(0.05, steps=3, schedule=rv.schedules.Cosine(rounds=ROUNDS))
    with jax.enable_x64(True):
        check_trajectory(FollowsRate(solver), quadratic(), STRAGGLERS, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ALL_ROWS)
def test_every_preset_follows_the_simulator(name, tmp_path):
    with jax.enable_x64(True):
        check_trajectory(ALL_ROWS[name](example_solver()), example_problem(), example_participation(),
                         tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("composition", sample(60, complete=True)[0], ids=str)
def test_every_composition_follows_the_simulator(composition, tmp_path):
    with jax.enable_x64(True):
        problem = {"quadratic": quadratic, "classification": classification}[composition.problem]()
        check_trajectory(composition.build(), problem, composition.build_participation(), tmp_path)


@pytest.mark.nightly
def test_marina_sends_only_the_part_of_a_reply_that_is_used(tmp_path):
    """Whole gradients in the first round, a twentieth of the entries in the next; the models are the simulator's."""
    rng = np.random.default_rng(0)
    problem = rv.problems.QuadraticProblem.least_squares(rng.normal(size=(2, 4, 1000)) / 30, rng.normal(size=(2, 4)))
    algorithm = rv.marina(rv.solvers.GD(0.1), codec=rv.codecs.RandK(share=0.05), p=1e-6)
    whole, part, header = 4000, 204, 1000  # bytes; the header at most
    with Federation(algorithm, problem, tmp_path) as federation:
        handler, sizes = federation.transport.handlers["site 0"], []

        def record(message):
            reply = handler(message)
            sizes.append((decode(reply).kind, len(reply)))
            return reply

        federation.transport.handlers["site 0"] = record
        result = federation.run()
    first, *later = [size for kind, size in sizes if kind == "reply"]
    assert whole < first < whole + part + header
    assert all(part < size < part + header for size in later)
    simulated = rv.simulate(algorithm, problem, rounds=ROUNDS, seed=SEED, progress=False)
    np.testing.assert_allclose(result.shared, simulated.server_model, rtol=1e-5, atol=1e-7)


@pytest.mark.when_changed
def test_metrics_are_those_of_a_simulation():
    """In float32, with samples: scores of personal and shared models, replies, and the order of the table."""
    data = rv.FederatedData.from_arrays(
        [np.random.default_rng(k).normal(size=(12, 3)) for k in range(3)],
        [np.random.default_rng(k).integers(0, 2, 12) for k in range(3)], validation=0.25, test=0.25)
    model, algorithm = rv.models.logistic(3, 2), rv.fedprox(GD, mu=0.1)
    simulated = rv.simulate(algorithm, model, data, rounds=2, seed=SEED, progress=False).metrics
    result = run_in_process(algorithm, rv.problems.LearningProblem(model, data), rounds=2, seed=SEED, method="run")
    keys = ["method", "round", "party", "split", "metric"]
    assert result.metrics[keys].equals(simulated[keys])
    np.testing.assert_allclose(result.metrics["value"], simulated["value"], atol=1e-6)
    assert jnp.allclose(result.shared["weight"], result.state["weight"])
