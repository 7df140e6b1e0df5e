"""FedMix, one-shot averaging, DGD, DCGD and DIANA against the poster's theorems."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, limit, quadratic, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms.description import describe
from resolvent.algorithms.methods.gradient import DistributedGradient
from resolvent.algorithms.methods.own_optimum import curvature
from resolvent.simulator.engine.evaluate import personal_models
from resolvent.simulator.engine.rounds import initial_state, run_rounds
from resolvent.simulator.record.systems import message_bytes

EQUAL_WEIGHTS = rv.participation.Full("uniform")
SAMPLED = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
DROPPING = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5, work="drop")
SOLVER = rv.SGD(0.2, batch_size=4, epochs=3)
EXACT = rv.solvers.ClosedForm()
ALPHA = np.array([0.2, 0.9, 0.5, 1.0, 0.4, 0.7])


class Mixed:
    """The FedMix objective of a quadratic problem, in NumPy."""

    def __init__(self, alpha, problem=None):
        problem = quadratic() if problem is None else problem
        n = problem.parties
        self.a = np.broadcast_to(alpha, n).astype(float)
        self.h, self.g = np.asarray(problem.hessians), np.asarray(problem.linears)
        self.optima = np.linalg.solve(self.h, self.g[..., None])[..., 0]
        eigenvalues = np.linalg.eigvalsh(self.h)
        self.mu, self.l = eigenvalues[:, 0], eigenvalues[:, -1]
        self.mu_a, self.l_a = np.mean(self.a**2 * self.mu), np.mean(self.a**2 * self.l)
        self.weights = self.a**2 * self.l / (n * self.l_a)
        self.average = self.weights @ self.optima
        hessian = np.einsum("k,kij->ij", self.a**2, self.h)
        self.best = np.linalg.solve(hessian, np.einsum("k,kij,kj->i", self.a**2, self.h, self.optima))
        gaps = self.optima[:, None] - self.optima[None]
        self.diameter = np.sqrt(np.max(np.sum(gaps**2, axis=-1)))
        self.spread = self.weights @ np.sum((self.optima - self.average)**2, axis=1)

    def personal_models(self, x):
        return self.a[:, None] * x + (1 - self.a[:, None]) * self.optima

    def value(self, x):
        t = self.personal_models(x)
        return np.mean(np.einsum("ki,kij,kj->k", t, self.h, t) / 2 - np.sum(self.g * t, axis=1))

    def error(self, x):
        return self.value(x) - self.value(self.best)


def rounds_from(algorithm, point, rounds):
    """The shared models of a run of an ``ExplicitMixture`` that starts at a point."""
    problem, points = quadratic(), [np.asarray(point)]
    state = initial_state(algorithm, problem)
    state = replace(state, server=state.server._replace(inner=jnp.asarray(point)))
    for t in range(rounds):
        state = run_rounds(algorithm, problem, EQUAL_WEIGHTS, state=state, start=t)
        points.append(np.asarray(algorithm.server_model(state.server)))
    return points


@pytest.mark.when_changed
def test_smoothness_and_convexity_constants():
    """mu_a |x-y| <= |grad(x) - grad(y)| <= L_a |x-y|, with the gradient that a round of DGD steps along."""
    mixed, rng = Mixed(ALPHA), np.random.default_rng(0)
    algorithm = rv.dgd(EXACT, learning_rate=1.0, alpha=ALPHA, repeats=1)
    points = mixed.best + 3 * rng.normal(size=(12, 4))
    gradients = []
    for x in points:
        before, after = rounds_from(algorithm, x, 1)
        gradients.append(before - after)
        expected = np.mean([a * (h @ (t - optimum)) for a, h, t, optimum in
                            zip(mixed.a, mixed.h, mixed.personal_models(x), mixed.optima, strict=True)], axis=0)
        np.testing.assert_allclose(gradients[-1], expected, atol=1e-12)
    for (x, g), (y, f) in zip(zip(points, gradients, strict=True), zip(points[1:], gradients[1:], strict=False),
                              strict=False):
        assert mixed.mu_a * np.linalg.norm(x - y) <= np.linalg.norm(g - f) <= mixed.l_a * np.linalg.norm(x - y)
    # If all H_k are multiples of the identity the bound is attained, so L_a is the smallest constant.
    scaled = np.eye(4) * mixed.l[:, None, None]
    np.testing.assert_allclose(np.einsum("k,kij->ij", mixed.a**2 / 6, scaled), mixed.l_a * np.eye(4), atol=1e-12)


@nightly.parametrize("alpha", [0.3, 0.8], per_commit=0)
def test_dgd_has_the_linear_rate_in_every_iteration(alpha):
    """(4) with V, and the bound with D^2."""
    mixed = Mixed(alpha)
    algorithm = rv.dgd(EXACT, learning_rate=1 / mixed.l_a, alpha=alpha, repeats=1)
    points = rounds_from(algorithm, mixed.average, 60)
    for k, x in enumerate(points):
        error = mixed.error(x)
        assert error <= (1 - mixed.mu.mean() / mixed.l.mean())**k * alpha**2 * mixed.l.mean() * mixed.spread / 2
        assert error <= (1 - mixed.mu_a / mixed.l_a)**k * alpha**2 * mixed.l.mean() * mixed.diameter**2 / 2
    assert mixed.error(points[-1]) < 1e-3 * mixed.error(points[0])


@pytest.mark.when_changed
def test_dgds_rate_with_different_alphas():
    mixed = Mixed(ALPHA)
    algorithm = rv.dgd(EXACT, learning_rate=1 / mixed.l_a, alpha=ALPHA, repeats=1)
    for k, x in enumerate(rounds_from(algorithm, mixed.average, 40)):
        bound = (1 - mixed.mu_a / mixed.l_a)**k * ALPHA.max()**2 * mixed.l.mean() * mixed.diameter**2 / 2
        assert mixed.error(x) <= bound


@pytest.mark.when_changed
@nightly.parametrize("participation", [rv.participation.Uniform(2, "uniform"), EQUAL_WEIGHTS], ids=["sampled", "full"])
def test_one_shot_averages_with_the_posters_weights(participation):
    """x_avg of (2), when every party has taken part once."""
    mixed = Mixed(ALPHA)
    state = limit(rv.one_shot(EXACT, alpha=ALPHA, smoothness=mixed.l, repeats=1), quadratic(), 40, participation)
    assert state.parties.has_replied.all()
    np.testing.assert_allclose(state.server.average, mixed.average, atol=1e-12)
    np.testing.assert_allclose(state.server.mass, mixed.l_a, rtol=1e-12)


def crossed(scale):
    """Two parties that each depend on one coordinate: the error is half of the bound."""
    h, best = jnp.array([[1, 1e-9], [1e-9, 1]]), scale * jnp.eye(2)
    return rv.problems.QuadraticProblem(jax.vmap(jnp.diag)(h), h * best)


@pytest.mark.nightly
@nightly.parametrize("size", [0.02, 0.5])
@nightly.parametrize("problem", [quadratic, lambda: crossed(0.1), lambda: crossed(100.0)],
                     ids=["quadratic", "near", "far"])
def test_one_shot_bound(problem, size):
    """eps-optimal if max alpha = sqrt(2 eps/L)/D; if all alphas are equal, with sqrt(V) instead of D.

    The error grows with the square of distances: the poster's bounds need D^2 where it prints D.
    """
    problem = problem()
    for alpha, width in ((size * np.linspace(0.3, 1, problem.parties), "diameter"), (size, "spread")):
        mixed = Mixed(alpha, problem)
        squared = mixed.diameter**2 if width == "diameter" else mixed.spread
        eps = size**2 * mixed.l.mean() * squared / 2
        algorithm = rv.one_shot(EXACT, alpha=alpha, smoothness=mixed.l, repeats=1)
        x = np.asarray(trajectory(algorithm, problem, 1, EQUAL_WEIGHTS)[-1].server.average)
        np.testing.assert_allclose(x, mixed.average, rtol=1e-9)
        assert 0 < mixed.error(x) <= eps
        if problem is not quadratic() and width == "spread":
            np.testing.assert_allclose(mixed.error(x), eps / 2, rtol=1e-3)


@pytest.mark.nightly
def test_one_shot_computes_the_smoothness():
    mixed, problem = Mixed(ALPHA), quadratic()
    smoothness = [curvature(problem.oracle(jnp.array(k)), jnp.zeros(4), jax.random.key(k), tolerance=1e-13)
             for k in range(6)]
    np.testing.assert_allclose(smoothness, mixed.l, rtol=1e-9)
    assert float(curvature(replace(problem.oracle(jnp.array(0)), hessian=jnp.zeros((4, 4))), jnp.zeros(4),
                           jax.random.key(0))) == 0
    state = trajectory(rv.one_shot(EXACT, alpha=ALPHA, repeats=1), problem, 1, EQUAL_WEIGHTS)[-1]
    np.testing.assert_allclose(state.server.average, mixed.average, atol=1e-4)
    unused = trajectory(rv.one_shot(EXACT, alpha=0.0, repeats=1), problem, 1, EQUAL_WEIGHTS)[-1]
    np.testing.assert_array_equal(unused.server.average, np.zeros(4))  # all weights are zero, and no party uses x_avg


@pytest.mark.nightly
@nightly.parametrize(("codec", "rate", "participation"), [
    (rv.codecs.RandK(k=1), 0.03, EQUAL_WEIGHTS),
    (rv.codecs.TopK(k=1), 0.03, EQUAL_WEIGHTS),
    (rv.codecs.NaturalCompression(), 0.1, rv.participation.Uniform(3, "uniform")),
    (rv.codecs.QSGD(levels=2), 0.1, rv.participation.Bernoulli(0.6, "uniform")),
], ids=["RandK", "TopK", "natural", "QSGD"])
def test_diana_converges_to_the_optimum_and_dcgd_does_not(codec, rate, participation):
    """With sampled parties as well: when h_k equals the gradient, neither compression nor sampling adds noise."""
    mixed = Mixed(ALPHA)
    settings = {"learning_rate": rate, "codec": codec, "alpha": ALPHA, "repeats": 1}
    diana, dcgd = (limit(rv.diana(EXACT, step=step, **settings), quadratic(), 6000, participation).server.inner.inner
                   for step in (None, 0.0))
    np.testing.assert_allclose(diana, mixed.best, atol=1e-9)
    assert 1e-2 < np.linalg.norm(dcgd - mixed.best) < 10


def test_diana_by_numpy():
    """Every h_k, h and x over whole rounds; TopK keeps the two largest entries."""
    mixed, rate, step = Mixed(ALPHA), 0.1, 0.4
    algorithm = rv.diana(EXACT, learning_rate=rate, codec=rv.codecs.TopK(k=2), step=step, alpha=ALPHA, repeats=1)
    states = trajectory(algorithm, quadratic(), 8, EQUAL_WEIGHTS)
    x, h = np.zeros(4), np.zeros((6, 4))
    for state in states[1:]:
        gradients = mixed.a[:, None] * np.einsum("kij,kj->ki", mixed.h, mixed.personal_models(x) - mixed.optima)
        d = gradients - h
        d[np.arange(6)[:, None], np.argsort(np.abs(d), axis=1)[:, :2]] = 0
        x = x - rate * (h.mean(axis=0) + d.mean(axis=0))
        h = h + step * d
        np.testing.assert_allclose(state.server.inner.inner, x, atol=1e-12)
        np.testing.assert_allclose(state.server.extra[0], h.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(state.parties.extra[0], h, atol=1e-12)


@nightly.parametrize("preset", [rv.diana, rv.dgd, rv.dcgd], ids=lambda preset: preset.__name__, per_commit=0)
def test_the_error_is_in_proportion_to_the_square_of_alpha(preset):
    """If the step is in proportion to 1/alpha^2, x_t does not depend on alpha."""
    paths = []
    for alpha in (0.8, 0.2):
        algorithm = preset(EXACT, learning_rate=0.05 / alpha**2, alpha=alpha, repeats=1)
        paths.append([np.asarray(algorithm.server_model(s.server))
                      for s in trajectory(algorithm, quadratic(), 25, EQUAL_WEIGHTS)])
    np.testing.assert_allclose(*paths, atol=1e-12)
    errors = [[mixed.error(x) for x in path] for mixed, path in zip((Mixed(0.8), Mixed(0.2)), paths, strict=True)]
    np.testing.assert_allclose(errors[0], 16 * np.array(errors[1]), rtol=1e-7)


DESCENT = rv.solvers.GD(0.1, steps=3)
INNER = {
    "scaffold": lambda: (classification(), rv.scaffold(SOLVER)),
    "feddane": lambda: (quadratic(), rv.feddane(DESCENT)),
    "dgd": lambda: (classification(), DistributedGradient(0.2)),
}


@nightly.parametrize("inner", INNER, per_commit=0)
def test_alpha_1_is_the_inner_algorithm(inner):
    """For several phases and party states, with sampled parties and minibatches."""
    problem, inner = INNER[inner]()
    plain = trajectory(inner, problem, 4, SAMPLED)
    mixed = trajectory(rv.fedmix(DESCENT, alpha=1.0, inner=inner), problem, 4, SAMPLED)
    equal([s.server.inner for s in mixed], [s.server for s in plain])
    equal([s.parties.inner for s in mixed], [s.parties for s in plain])


@pytest.mark.when_changed
@nightly.parametrize("alpha", [0.3, 0.0, 0.8])
def test_variance_of_the_personal_models(alpha):
    """V(T_1(x), ..., T_n(x)) = (1-alpha)^2 V(x_1, ..., x_n) for any x."""
    algorithm = rv.fedmix(rv.solvers.GD(0.3, steps=20), alpha=alpha, inner=rv.fedavg(rv.solvers.GD(0.1)), repeats=20)
    state = trajectory(algorithm, quadratic(), 3, rv.participation.Uniform(2))[-1]
    models, optima = np.asarray(personal_models(algorithm, quadratic(), state, jnp.arange(6))), state.parties.extra
    np.testing.assert_allclose(optima, Mixed(1.0).optima, atol=1e-10)
    np.testing.assert_allclose(np.var(models, axis=0).sum(), (1 - alpha)**2 * np.var(optima, axis=0).sum(), rtol=1e-12)
    np.testing.assert_allclose(models, alpha * state.server.inner + (1 - alpha) * optima, atol=1e-14)


@pytest.mark.nightly
def test_acceleration_and_mixing_commute():
    """Both orders converge to FedMix's minimiser, by splitting whose parties solve the mixtures in closed form."""
    mixed, inner = Mixed(ALPHA), rv.fedpi(EXACT, eta=2.0)
    outside = rv.combinators.Anderson(rv.combinators.ExplicitMixture(inner, solver=EXACT, alpha=ALPHA))
    inside = rv.combinators.ExplicitMixture(rv.combinators.Anderson(inner), solver=EXACT, alpha=ALPHA)
    outer_states, inner_states = (trajectory(algorithm, quadratic(), 30, EQUAL_WEIGHTS)
                                  for algorithm in (outside, inside))
    equal([state.server for state in outer_states], [state.server for state in inner_states])
    shared = outside.server_model(outer_states[-1].server)
    np.testing.assert_allclose(shared, mixed.best, atol=1e-7)
    models = personal_models(inside, quadratic(), inner_states[-1], jnp.arange(6))
    np.testing.assert_allclose(models, mixed.personal_models(shared), atol=1e-12)


@pytest.mark.nightly
@nightly.parametrize("participation", [DROPPING, rv.participation.BySize(3), rv.participation.Bernoulli(0.5)],
                     ids=lambda participation: type(participation).__name__)
def test_server_states_are_the_weighted_means_of_the_parties(participation):
    """DIANA's h, for each phase, and L2GD's mean, whichever parties are absent or late."""
    problem = quadratic()
    shares = np.asarray(participation.shares(problem.sizes))

    def mean(rows):
        return jax.tree.map(lambda leaf: np.tensordot(shares, leaf, 1), rows)

    compressed = rv.combinators.Compressed(rv.feddane(DESCENT), rv.codecs.RandK(k=2), 0.3)
    for state in trajectory(compressed, problem, 4, participation):
        equal(state.server.extra, mean(state.parties.extra))
    assert np.abs(state.server.extra[1]).max() > 0
    for state in trajectory(rv.l2gd(DESCENT, lam=0.5), problem, 4, participation):
        equal(state.server.mean, mean(state.parties))


@pytest.mark.nightly
def test_the_identity_codec_is_the_inner_algorithm():
    """For any step with full participation, and for step 0 with sampled parties."""
    inner = rv.scaffold(DESCENT)
    for participation, step in ((rv.participation.Full(), 0.7), (DROPPING, 0.0)):
        plain = trajectory(inner, quadratic(), 4, participation)
        whole = trajectory(rv.combinators.Compressed(inner, rv.codecs.Identity(), step), quadratic(), 4, participation)
        equal([s.server.inner for s in whole], [s.server for s in plain])
        equal([s.parties.inner for s in whole], [s.parties for s in plain])


def test_bytes_of_compressed_replies():
    problem = classification()  # 12 parameters in float64
    codec = rv.codecs.NaturalCompression()
    for inner, down, up in ((rv.fedavg(SOLVER), 96, 18), (rv.scaffold(SOLVER), 192, 36),
                            (rv.feddane(SOLVER), 288, 36), (rv.local(SOLVER), 0, 0)):
        algorithm = rv.combinators.Compressed(inner, codec, 0.5)
        assert message_bytes(describe(algorithm, problem)) == (down, up)
    fedmix = rv.diana(SOLVER, codec=rv.codecs.RandK(k=2), alpha=0.5, repeats=1)
    assert message_bytes(describe(fedmix, problem)) == (96 + 8, 2 * 8 + 4)


def test_shifts_need_a_server_that_only_needs_means():
    codec = rv.codecs.RandK()
    for inner, part in ((rv.fedgeomed_plus(SOLVER), "MoreauCentre"), (rv.splitting(SOLVER), "Splitting"),
                        (rv.fedavg_plus(SOLVER, aggregate="all"), ""),
                        (rv.fedmix(SOLVER, inner=rv.combinators.Anderson(rv.fedpi(SOLVER))), "Splitting")):
        with pytest.raises(rv.InputError, match=f"linear aggregator, got {part}.*step=0"):
            rv.combinators.Compressed(inner, codec, 0.5)
        rv.combinators.Compressed(inner, codec, 0)
    for inner in (rv.splitting(SOLVER, decentralised=True), rv.fedadam(SOLVER), rv.feddane(SOLVER), rv.ditto(SOLVER)):
        rv.combinators.Compressed(inner, codec, 0.5)


def test_wrong_settings_are_refused():
    compressed = rv.combinators.Compressed(rv.fedavg(SOLVER), rv.codecs.RandK(), 0)
    with pytest.raises(rv.InputError, match="not compressed yet"):
        rv.combinators.Compressed(rv.fedmix(SOLVER, inner=compressed), rv.codecs.RandK(), 0)
    with pytest.raises(rv.InputError, match=r"StaleReplies.*Compressed"):
        rv.combinators.StaleReplies(compressed)
    with pytest.raises(ValueError, match="step"):
        rv.diana(SOLVER, step=1.5)
    with pytest.raises(ValueError, match="alpha"):
        rv.fedmix(SOLVER, alpha=[0.5, 1.2])
    with pytest.raises(ValueError, match="one per party"):
        trajectory(rv.fedmix(SOLVER, alpha=[0.5, 0.2]), quadratic(), 1)
    with pytest.raises(ValueError, match=r"p=1\.0"):
        rv.l2gd(SOLVER, p=1.0)
    with pytest.raises(ValueError, match="beyond the mean"):
        rv.l2gd(SOLVER, lam=10.0)
    with pytest.raises(rv.InputError, match="plain gradient steps, got ClosedForm"):
        rv.l2gd(EXACT)
