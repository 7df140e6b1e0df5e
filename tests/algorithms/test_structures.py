"""Personal layers, clusters and sharpness-aware work against plain loops and one another."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, limit, personal_models, quadratic, trajectory

import resolvent as rv
from resolvent.algorithms.description import describe
from resolvent.problem.maps import Ascent
from resolvent.simulator.record.systems import message_bytes

EQUAL_WEIGHTS = rv.participation.Full("uniform")
PersonalLayers = rv.combinators.PersonalLayers
GD = rv.solvers.GD(0.2, steps=2)
SOLVER = rv.SGD(0.2, batch_size=4, epochs=2)


def descend(problem, k, w, gradient=lambda oracle, w: oracle.grad(w)):
    oracle = problem.oracle(jnp.array(k))
    for _ in range(2):
        w = jax.tree.map(lambda a, g: a - 0.2 * g, w, gradient(oracle, w))
    return w


@pytest.mark.nightly
def test_personal_layers_by_a_plain_loop():
    problem, algorithm = classification(), PersonalLayers(rv.fedavg(GD), ["bias"])
    states = trajectory(algorithm, problem, 3)
    shares = np.asarray(problem.sizes) / np.sum(problem.sizes)
    weight, biases = jnp.asarray(states[0].server.inner["weight"]), [jnp.zeros(3)] * 6
    for state in states[1:]:
        models = [descend(problem, k, {"weight": weight, "bias": biases[k]}) for k in range(6)]
        weight = sum(share * model["weight"] for share, model in zip(shares, models, strict=True))
        biases = [model["bias"] for model in models]
        equal(state.server.inner["weight"], weight)
        equal(state.parties.extra["bias"], np.stack(biases))
    personal = personal_models(algorithm, problem, states[-1])
    equal(personal, {"weight": np.stack([weight] * 6), "bias": np.stack(biases)})


@pytest.mark.when_changed
def test_personal_layers_with_absent_parties_keeps_their_layers_and_does_not_use_them():
    problem, participation = classification(), rv.participation.Uniform(2)
    states = trajectory(PersonalLayers(rv.fedavg(SOLVER), ["bias"]), problem, 4, participation)
    for before, after in pairwise(states):
        moved = np.any(after.parties.extra["bias"] != before.parties.extra["bias"], axis=-1)
        assert moved.sum() == 2
        np.testing.assert_array_equal(after.server.inner["bias"], states[0].server.inner["bias"])


@pytest.mark.parametrize(("layers", "message"), [
    (["head"], "'head' matches no parameter: give layers= names of these layers, or patterns of them: bias, weight"),
    (["*"], "matches all parameters"), ([], "at least one pattern")])
def test_personal_layers_refuses_patterns_that_select_nothing_or_everything(layers, message):
    with pytest.raises(rv.InputError, match=message):
        trajectory(PersonalLayers(rv.fedavg(SOLVER), layers), classification(), 1)


@pytest.mark.parametrize("inner", [rv.scaffold(SOLVER), rv.fedpi(SOLVER, eta=0.5), rv.fedavg_plus(SOLVER)],
                         ids=["scaffold", "fedpi", "fedavg_plus"])
def test_personal_layers_refuses_an_algorithm_that_exchanges_something_else_than_models(inner):
    with pytest.raises(rv.InputError, match=r"whose replies are models|that sends one model"):
        trajectory(PersonalLayers(inner, ["bias"]), classification(), 1)


@pytest.mark.nightly
def test_fedrep_by_a_plain_loop():
    """Two steps on the own bias with the weights fixed, then two on the weights with this bias fixed."""
    problem, algorithm = classification(), rv.fedrep(GD, layers=("bias",))
    states = trajectory(algorithm, problem, 3)
    shares = np.asarray(problem.sizes) / np.sum(problem.sizes)
    weight, biases = jnp.asarray(states[0].server.inner["weight"]), [jnp.zeros(3)] * 6

    def only(name):
        def gradient(oracle, w):
            return {key: g * (key == name) for key, g in oracle.grad(w).items()}
        return gradient

    for state in states[1:]:
        models = []
        for k in range(6):
            model = descend(problem, k, {"weight": weight, "bias": biases[k]}, only("bias"))
            models.append(descend(problem, k, model, only("weight")))
        weight = sum(share * model["weight"] for share, model in zip(shares, models, strict=True))
        biases = [model["bias"] for model in models]
        equal(state.server.inner["weight"], weight)
        equal(state.parties.extra["bias"], np.stack(biases))


@pytest.mark.when_changed
def test_fedrep_finds_the_representation_that_parties_share():
    """Linear regression y = h_k (b . x): the shared b ends in the common direction, which no party knows."""
    rng = np.random.default_rng(0)
    direction, heads = np.array([3.0, 4.0, 0.0]) / 5, np.array([1.0, -2.0, 0.5, 3.0])
    x = [rng.normal(size=(30, 3)) for _ in heads]
    data = rv.FederatedData.from_arrays(x, [h * (rows @ direction) for h, rows in zip(heads, x, strict=True)],
                                        validation=0, test=0)
    model = rv.models.from_functions(
        lambda key: {"body": jnp.array([1.0, 0.0, 0.5]), "head": jnp.ones(1)},
        lambda w, x: (x @ w["body"]) * w["head"], loss="squared_error")
    algorithm = rv.fedrep(rv.solvers.GD(0.05, steps=1), personal_solver=rv.solvers.GD(0.1, steps=20))
    body = np.asarray(limit(algorithm, rv.problems.LearningProblem(model, data), 600).server.inner["body"])
    np.testing.assert_allclose(np.abs(body @ direction) / np.linalg.norm(body), 1, atol=1e-6)


def test_personal_leaves_are_not_sent():
    problem, algorithm = classification(), PersonalLayers(rv.fedavg(GD), ["bias"])  # 9 weights and 3 biases, float64
    assert message_bytes(describe(algorithm, problem)) == (72, 72)


@pytest.mark.when_changed
def test_ifca_separates_two_groups_and_solves_the_problem_of_each():
    """Two groups with the minimisers 1 and -1 and equal Hessians: each model ends at the minimiser of one group."""
    signs = np.array([1, 1, -1, 1, -1, -1.0])
    problem = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(3)] * 6), jnp.asarray(signs[:, None] * np.ones(3)))
    state = trajectory(rv.ifca(rv.solvers.GD(0.5, steps=3), clusters=2), problem, 12, EQUAL_WEIGHTS)[-1]
    np.testing.assert_allclose(sorted(np.asarray(state.server)[:, 0]), [-1, 1], atol=1e-9)
    personal = personal_models(rv.ifca(rv.solvers.GD(0.5, steps=3)), problem, state)
    np.testing.assert_allclose(personal, signs[:, None] * np.ones(3), atol=1e-9)


@pytest.mark.nightly
def test_ifca_with_one_cluster_is_fedavg():
    problem = classification()
    ifca, fedavg = (trajectory(algorithm, problem, 3) for algorithm in (rv.ifca(SOLVER, clusters=1), rv.fedavg(SOLVER)))
    equal([jax.tree.map(lambda leaf: leaf[0], state.server) for state in ifca], [state.server for state in fedavg])


def test_fedcac_by_numpy():
    """Two arrays, absent parties, and four rounds of which the third is the last with collaborators, as plain loops."""
    problem, tau, beta, rounds = classification(), 0.4, 3, 4
    states = trajectory(rv.fedcac(GD, tau=tau, beta=beta), problem, rounds, rv.participation.Uniform(4))
    sizes, first = np.asarray(problem.sizes), states[0].server.shared
    personal, models, masks = ([first] * 6, [first] * 6, [None] * 6)
    for t, (before, after) in enumerate(pairwise(states)):
        cohort = [k for k in range(6) if not np.array_equal(before.server.models["weight"][k],
                                                            after.server.models["weight"][k])]
        assert len(cohort) == 4
        for k in cohort:
            models[k] = descend(problem, k, personal[k])
            moved = {name: np.abs((np.asarray(models[k][name]) - personal[k][name]) * models[k][name])
                     for name in ("weight", "bias")}
            masks[k] = {name: s >= np.sort(s, axis=None)[::-1][int(np.ceil(tau * s.size)) - 1]
                        for name, s in moved.items()}
        weights = sizes[cohort] / sizes[cohort].sum()
        shared = {name: sum(c * np.asarray(models[k][name]) for c, k in zip(weights, cohort, strict=True))
                  for name in ("weight", "bias")}
        known = [k for k in range(6) if masks[k]]
        overlap = {(k, j): sum((masks[k][name] & masks[j][name]).sum() for name in shared)
                   / sum(masks[k][name].sum() for name in shared) for k in known for j in known if k != j}
        mean, largest = np.mean([*overlap.values()]), max(overlap.values())
        bound = mean + (t + 1) / beta * (largest - mean)
        for k in range(6):
            partners = [k, *(j for j in known if overlap.get((k, j), 0) >= bound - 1e-7)]
            own = {name: np.mean([np.asarray(models[j][name]) for j in partners], axis=0) for name in shared}
            personal[k] = {name: np.where(masks[k][name], own[name], shared[name]) if masks[k] else shared[name]
                           for name in shared}
            assert t + 1 <= beta or partners == [k]
        for k in range(6):
            equal(jax.tree.map(lambda leaf, k=k: leaf[k], after.server.personal), personal[k])


def test_fedcac_with_all_entries_critical_is_fedavg_with_equal_weights():
    """All overlaps are 1, so that everybody collaborates."""
    problem = classification()
    cac, fedavg = (trajectory(algorithm, problem, 3, EQUAL_WEIGHTS)
                   for algorithm in (rv.fedcac(SOLVER, tau=1.0), rv.fedavg(SOLVER)))
    for state, other in zip(cac, fedavg, strict=True):
        equal(jax.tree.map(lambda leaf: leaf[3], state.server.personal), other.server)
        equal(state.server.shared, other.server)


def test_fedsam_by_numpy():
    problem, radius = quadratic(), 0.3
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    states = trajectory(rv.fedsam(GD, radius=radius), problem, 2, EQUAL_WEIGHTS)
    shared = np.zeros(4)
    for state in states[1:]:
        models = np.repeat(shared[None], 6, axis=0)
        for _ in range(2):
            ascent = np.einsum("kij,kj->ki", h, models) - g
            worst = models + radius * ascent / np.linalg.norm(ascent, axis=1, keepdims=True)
            models = models - 0.2 * (np.einsum("kij,kj->ki", h, worst) - g)
        shared = models.mean(axis=0)
        np.testing.assert_allclose(state.server.inner, shared, atol=1e-12)


@pytest.mark.nightly
def test_fedspeed_with_a_tiny_radius_is_fedpd():
    problem = quadratic()
    fedspeed, fedpd = (trajectory(algorithm, problem, 4, EQUAL_WEIGHTS) for algorithm in (
        rv.fedspeed(GD, eta=0.7, radius=1e-9), rv.fedpd(GD, eta=0.7)))
    equal([state.server.inner for state in fedspeed], [state.server for state in fedpd], tolerance=1e-7)


def test_the_step_of_sam_maximises_a_linear_function_over_a_ball():
    w, gradient = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])
    np.testing.assert_allclose(Ascent(0.5)(w, lambda _: gradient), [1.3, 2.4], atol=1e-12)
    np.testing.assert_array_equal(Ascent(0.5)(w, lambda _: jnp.zeros(2)), w)
    with pytest.raises(rv.InputError, match="radius"):
        Ascent(0.0)
