"""Defaults of Fed+ that do not depend on the scale: sigma from the learning rate, delta from the median distance."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import classification, equal, quadratic, trajectory

import nightly
import resolvent as rv
from resolvent.aggregators import MoreauCentre
from resolvent.algorithms.methods.fedplus import FedPlus, ProxAnchor
from resolvent.algorithms.methods.personal_splitting import PersonalSplitting
from resolvent.math import tree

SOLVER = rv.SGD(0.2, batch_size=4, epochs=2)
SAMPLED = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
NORMS = {"L2Norm": rv.penalties.L2Norm(), "L1": rv.penalties.L1()}


@pytest.mark.parametrize("preset", [rv.fedgeomed_plus, rv.fedcomed_plus])
def test_the_presets_are_the_papers_with_a_number_and_by_default(preset):
    """By default nothing is around Fed+ either: delta is relative, an option of the method."""
    penalty = NORMS["L2Norm" if preset is rv.fedgeomed_plus else "L1"]
    paper = FedPlus(SOLVER, ProxAnchor(penalty, 0.1), MoreauCentre(penalty, 0.1), 0.1, 0.0)
    assert eqx.tree_equal(preset(SOLVER, sigma=0.1, delta=0.1), paper)
    relative = FedPlus(SOLVER, ProxAnchor(penalty, 1.0, is_relative=True),
                       MoreauCentre(penalty, 1.0, is_relative=True), (1 / 0.95 - 1) / 0.2, 0.0)
    assert eqx.tree_equal(preset(SOLVER), relative)
    assert eqx.tree_equal(rv.fedplus(SOLVER, penalty, delta="spread"), relative)
    mean = FedPlus(SOLVER, ProxAnchor(rv.penalties.SquaredL2(), 10.0), rv.aggregators.Mean(), relative.sigma, 0.0)
    for solver in (SOLVER, rv.solvers.DPSGD(0.2, steps=2), rv.solvers.adam(0.01, keep=True)):  # whatever the solver
        assert jax.tree.structure(rv.fedavg_plus(solver)) == jax.tree.structure(eqx.tree_at(
            lambda a: a.solver, mean, solver))
    splitting = PersonalSplitting(SOLVER, ProxAnchor(penalty, 0.1), MoreauCentre(penalty, 0.1), 0.1)
    assert eqx.tree_equal(rv.personal_splitting(SOLVER, penalty, sigma=0.1, delta=0.1), splitting)


@pytest.mark.parametrize("solver", [
    rv.SGD(0.02), rv.solvers.GD(3.0), rv.solvers.SVRG(0.5), rv.solvers.DPSGD(0.5, steps=2),
    rv.solvers.momentum(0.3), rv.solvers.adam(0.01, proximal="implicit"),
], ids=lambda solver: f"{type(solver).__name__} {solver.step_size:g}")
def test_the_default_sigma_gives_the_recommended_kappa_at_every_learning_rate(solver):
    for algorithm, kappa in ((rv.fedavg_plus(solver), 0.95), (rv.fedgeomed_plus(solver), 0.95),
                             (rv.fedplus_pull(solver, rv.aggregators.Mean()), 0.95),
                             (rv.fedpi_plus(solver, rv.penalties.L2Norm()), 0.98)):
        assert 1 / (1 + solver.step_size * algorithm.sigma) == pytest.approx(kappa)


@pytest.mark.parametrize("solver", [rv.solvers.LBFGS(), rv.solvers.ClosedForm(), rv.solvers.adam(0.01),
                                    rv.OptaxSolver(optax.sgd(0.1))], ids=lambda solver: type(solver).__name__)
def test_a_solver_without_a_step_size_has_the_papers_sigma(solver):
    assert solver.step_size is None
    assert rv.fedavg_plus(solver).sigma == 0.1


@pytest.mark.when_changed
@nightly.parametrize("name", sorted(NORMS))
@nightly.parametrize("build", [rv.fedplus, rv.personal_splitting], ids=lambda build: build.__name__)
def test_other_units_of_the_parameters_give_the_same_models(name, build):
    """f(c w) instead of f(w), and the learning rate over c^2: all parameters and delta are divided by c."""
    def states(c):
        problem = quadratic()
        scaled = rv.problems.QuadraticProblem(c**2 * problem.hessians, c * problem.linears, sizes=problem.sizes)
        return trajectory(build(rv.solvers.GD(0.1 / c**2, steps=3), NORMS[name]), scaled, 6, SAMPLED)

    for state, small in zip(states(1.0), states(128.0), strict=True):
        scaled = jax.tree.map(lambda leaf: 128.0 * leaf, (small.parties, small.server))
        equal((state.parties, state.server), scaled, 1e-5)
    assert max(float(leaf) for leaf in jax.tree.leaves(state.server) if jnp.ndim(leaf) == 0) > 0.1


@pytest.mark.when_changed
def test_delta_is_the_median_distance_from_the_new_centre():
    problem = classification()
    before, after = trajectory(rv.fedgeomed_plus(SOLVER, sigma=1.0), problem, 2, rv.participation.Full("uniform"))[-2:]
    distances = [float(tree.norm(tree.sub(tree.rows(after.parties, k), after.server.centre))) for k in range(6)]
    assert float(after.server.delta) == pytest.approx(np.median(distances))
    delta, centre = float(before.server.delta), before.server.centre
    work = rv.fedgeomed_plus(SOLVER, sigma=1.0, delta=delta)
    models = [tree.rows(before.parties, k) for k in range(6)]
    far = np.array([float(tree.norm(tree.sub(model, centre))) for model in models]) > delta
    assert far.sum() == 3  # half of the parties; the others have their anchor at the centre
    for model, is_far in zip(models, far, strict=True):
        moved = float(tree.norm(tree.sub(work.anchor(centre, model, ()), centre)))
        assert (moved > 1e-9) == is_far


@pytest.mark.nightly
def test_a_minority_cannot_move_delta_far():
    algorithm, attack = rv.fedgeomed_plus(SOLVER), rv.attacks.Scaled(1e6)
    honest, attacked = (trajectory(a, classification(), 3, rv.participation.Full("uniform"))[-1].server
                        for a in (algorithm, rv.attacked(algorithm, attack, share=0.3)))
    assert float(attacked.inner.delta) < 10 * float(honest.delta)


@pytest.mark.parametrize(("penalty", "threshold"), [
    (rv.penalties.L2Norm(), 5.0), (rv.penalties.L1(), 4.0), (rv.penalties.Scaled(rv.penalties.L1(), 2.0), 2.0),
    (rv.penalties.PerLayer({"a": rv.penalties.L1()}, default=rv.penalties.L2Norm()), 4.0),
], ids=lambda value: type(value).__name__)
def test_the_threshold_is_the_smallest_smoothing_that_removes_a_vector(penalty, threshold):
    x = {"a": jnp.array([3.0]), "b": jnp.array([-4.0])}
    assert penalty.threshold(x) == pytest.approx(threshold)
    assert tree.norm(penalty.prox(x, threshold)) == 0
    assert tree.norm(penalty.prox(x, 0.99 * threshold)) > 0


def test_a_relative_delta_needs_a_norm():
    with pytest.raises(TypeError, match=r"SquaredL2 has no smoothing .* use a norm"):
        rv.penalties.SquaredL2().threshold(jnp.ones(2))
    for preset in (rv.fedplus, rv.personal_splitting, rv.fedpi_plus):
        with pytest.raises(rv.InputError, match=r"needs a norm as the penalty, got SquaredL2: give delta as a number"):
            preset(SOLVER, rv.penalties.SquaredL2(), delta="spread")
        with pytest.raises(rv.InputError, match=r"delta='spred'.* did you mean 'spread'\?"):
            preset(SOLVER, rv.penalties.L2Norm(), delta="spred")


@pytest.mark.parametrize(("preset", "name"), [(rv.ditto, "lam"), (rv.l2gd, "lam"), (rv.pfedme, "lam")],
                         ids=["ditto", "l2gd", "pfedme"])
def test_other_weights_of_personal_methods_follow_the_learning_rate(preset, name):
    for rate in (0.001, 0.5):
        assert 1 / (1 + rate * getattr(preset(rv.SGD(rate)), name)) == pytest.approx(0.95)
    assert preset(rv.SGD(0.2), lam=0.1).lam == 0.1
    assert rv.pfedme(rv.SGD(0.2), lam=4.0).eta == 0.25


def digits_scores(algorithm):
    """The parties' test accuracies after 20 rounds on digits of 30 parties with all classes."""
    data = rv.datasets.digits(parties=30, classes_per_party=10, size_spread=0.0)
    result = rv.simulate(algorithm, rv.models.logistic(64, 10), data, rounds=20, evaluate_every=20, progress=False)
    return result.scores().iloc[-1].to_numpy()


@pytest.mark.nightly  # trains 30 parties four times, for 9 s
def test_protected_fed_plus_gains_and_holds_against_updates_in_the_opposite_direction():
    """With the paper's numbers Fed+ is local training here."""
    solver = rv.SGD(0.05, batch_size=20, epochs=4)
    attacked = rv.attacked(rv.protected_fedplus(solver), rv.attacks.SignFlip(), share=0.0, parties=tuple(range(6)))
    alone, default, paper, under_attack = map(digits_scores, (
        rv.local(solver), rv.protected_fedplus(solver), rv.fedgeomed_plus(solver, sigma=0.1, delta=0.1), attacked))
    assert default.mean() > alone.mean() + 0.1
    assert paper.mean() < alone.mean() + 0.05
    honest = np.arange(6, 30)
    assert under_attack[honest].mean() >= alone[honest].mean()
