"""FedMix, one-shot averaging, DGD, DCGD and DIANA against the poster's theorems."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SEED, classification, equal, limit, quadratic, trajectory

import resolvent as rv
from resolvent.algorithms.methods.gradient import DistributedGradient
from resolvent.algorithms.methods.one_shot import curvature
from resolvent.simulate.engine import initial, run_chunk
from resolvent.simulate.evaluate import deployed
from resolvent.simulate.measure import message_bytes

ALIKE = rv.participation.Full("uniform")
WHO = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
SOLVER = rv.SGD(0.2, batch_size=4, epochs=3)
EXACT = rv.solvers.ClosedForm()
ALPHA = np.array([0.2, 0.9, 0.5, 1.0, 0.4, 0.7])


class Mixed:
    """The FedMix objective of a quadratic problem, in NumPy."""

    def __init__(self, alpha, p=None):
        p = quadratic() if p is None else p
        n = p.parties
        self.a = np.broadcast_to(alpha, n).astype(float)
        self.h, self.g = np.asarray(p.hessians), np.asarray(p.linears)
        self.own = np.linalg.solve(self.h, self.g[..., None])[..., 0]
        eigenvalues = np.linalg.eigvalsh(self.h)
        self.mu, self.l = eigenvalues[:, 0], eigenvalues[:, -1]
        self.mu_a, self.l_a = np.mean(self.a**2 * self.mu), np.mean(self.a**2 * self.l)
        self.weights = self.a**2 * self.l / (n * self.l_a)
        self.average = self.weights @ self.own
        hessian = np.einsum("k,kij->ij", self.a**2, self.h)
        self.best = np.linalg.solve(hessian, np.einsum("k,kij,kj->i", self.a**2, self.h, self.own))
        gaps = self.own[:, None] - self.own[None]
        self.diameter = np.sqrt(np.max(np.sum(gaps**2, axis=-1)))
        self.spread = self.weights @ np.sum((self.own - self.average)**2, axis=1)

    def deployed(self, x):
        return self.a[:, None] * x + (1 - self.a[:, None]) * self.own

    def value(self, x):
        t = self.deployed(x)
        return np.mean(np.einsum("ki,kij,kj->k", t, self.h, t) / 2 - np.sum(self.g * t, axis=1))

    def error(self, x):
        return self.value(x) - self.value(self.best)


def rounds_from(algorithm, point, rounds):
    """Shared models of a run that starts at a point."""
    problem, points = quadratic(), [np.asarray(point)]
    state = initial(algorithm, problem, ALIKE, SEED)
    state = replace(state, server=algorithm.with_iterate(state.server, jnp.asarray(point)))
    for t in range(rounds):
        state = run_chunk(algorithm, problem, ALIKE, state, SEED, jnp.array(t), jnp.array(1), capacity=1, record=(),
                          scheduler="sequential").state
        points.append(np.asarray(algorithm.server_model(state.server)))
    return points


def test_smoothness_and_convexity_constants():
    """mu_a |x-y| <= |grad(x) - grad(y)| <= L_a |x-y|, with the gradient that a round of DGD steps along."""
    mixed, rng = Mixed(ALPHA), np.random.default_rng(0)
    algorithm = rv.dgd(EXACT, learning_rate=1.0, alpha=ALPHA, repeats=1)
    points = mixed.best + 3 * rng.normal(size=(12, 4))
    gradients = []
    for x in points:
        before, after = rounds_from(algorithm, x, 1)
        gradients.append(before - after)
        expected = np.mean([a * (h @ (t - own)) for a, h, t, own in
                            zip(mixed.a, mixed.h, mixed.deployed(x), mixed.own, strict=True)], axis=0)
        np.testing.assert_allclose(gradients[-1], expected, atol=1e-12)
    for (x, g), (y, f) in zip(zip(points, gradients, strict=True), zip(points[1:], gradients[1:], strict=False),
                              strict=False):
        assert mixed.mu_a * np.linalg.norm(x - y) <= np.linalg.norm(g - f) <= mixed.l_a * np.linalg.norm(x - y)
    # Where all H_k are multiples of the identity the bound is attained: L_a is no larger than need be.
    scaled = np.eye(4) * mixed.l[:, None, None]
    np.testing.assert_allclose(np.einsum("k,kij->ij", mixed.a**2 / 6, scaled), mixed.l_a * np.eye(4), atol=1e-12)


@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_dgd_keeps_the_linear_rate_at_every_iteration(alpha):
    """(4) with V, and its first form with D^2."""
    mixed = Mixed(alpha)
    algorithm = rv.dgd(EXACT, learning_rate=1 / mixed.l_a, alpha=alpha, repeats=1)
    points = rounds_from(algorithm, mixed.average, 60)
    for k, x in enumerate(points):
        error = mixed.error(x)
        assert error <= (1 - mixed.mu.mean() / mixed.l.mean())**k * alpha**2 * mixed.l.mean() * mixed.spread / 2
        assert error <= (1 - mixed.mu_a / mixed.l_a)**k * alpha**2 * mixed.l.mean() * mixed.diameter**2 / 2
    assert mixed.error(points[-1]) < 1e-3 * mixed.error(points[0])


def test_dgds_rate_with_different_alphas():
    mixed = Mixed(ALPHA)
    algorithm = rv.dgd(EXACT, learning_rate=1 / mixed.l_a, alpha=ALPHA, repeats=1)
    for k, x in enumerate(rounds_from(algorithm, mixed.average, 40)):
        bound = (1 - mixed.mu_a / mixed.l_a)**k * ALPHA.max()**2 * mixed.l.mean() * mixed.diameter**2 / 2
        assert mixed.error(x) <= bound


@pytest.mark.parametrize("who", [ALIKE, rv.participation.Uniform(2, "uniform")], ids=["full", "sampled"])
def test_one_shot_averages_with_the_posters_weights(who):
    """x_avg of (2), once everybody has taken part once; its error is below the bound of both conditions."""
    mixed = Mixed(ALPHA)
    state = limit(rv.one_shot(EXACT, alpha=ALPHA, smoothness=mixed.l, repeats=1), quadratic(), 40, who)
    average = np.asarray(state.server[0])
    assert np.asarray(state.parties[2]).all()
    np.testing.assert_allclose(average, mixed.average, atol=1e-12)
    np.testing.assert_allclose(state.server[1], mixed.l_a, rtol=1e-12)


def crossed(scale):
    """Two parties that care for one coordinate each, so that the bound is attained but for a factor of two."""
    h, best = jnp.array([[1, 1e-9], [1e-9, 1]]), scale * jnp.eye(2)
    return rv.problems.QuadraticProblem(jax.vmap(jnp.diag)(h), h * best)


@pytest.mark.parametrize("size", [0.02, 0.5])
@pytest.mark.parametrize("problem", [quadratic, lambda: crossed(0.1), lambda: crossed(100.0)],
                         ids=["quadratic", "near", "far"])
def test_one_shot_bound(problem, size):
    """eps-optimal where max alpha = sqrt(2 eps/L)/D; where all alphas are beta, with sqrt(V) for D.

    The error grows with the square of distances, so the poster's D in the error bounds stands for its square.
    """
    problem = problem()
    for alpha, width in ((size * np.linspace(0.3, 1, problem.parties), "diameter"), (size, "spread")):
        mixed = Mixed(alpha, problem)
        squared = mixed.diameter**2 if width == "diameter" else mixed.spread
        eps = size**2 * mixed.l.mean() * squared / 2
        algorithm = rv.one_shot(EXACT, alpha=alpha, smoothness=mixed.l, repeats=1)
        x = np.asarray(trajectory(algorithm, problem, 1, ALIKE)[-1].server[0])
        np.testing.assert_allclose(x, mixed.average, rtol=1e-9)
        assert 0 < mixed.error(x) <= eps
        if problem is not quadratic() and width == "spread":
            np.testing.assert_allclose(mixed.error(x), eps / 2, rtol=1e-3)


def test_one_shot_finds_the_smoothness_itself():
    mixed, problem = Mixed(ALPHA), quadratic()
    found = [curvature(problem.oracle(jnp.array(k)), jnp.zeros(4), jax.random.key(k), tolerance=1e-13)
             for k in range(6)]  # compiled once
    np.testing.assert_allclose(found, mixed.l, rtol=1e-9)
    assert float(curvature(replace(problem.oracle(jnp.array(0)), hessian=jnp.zeros((4, 4))), jnp.zeros(4),
                           jax.random.key(0))) == 0
    state = trajectory(rv.one_shot(EXACT, alpha=ALPHA, repeats=1), problem, 1, ALIKE)[-1]
    np.testing.assert_allclose(state.server[0], mixed.average, atol=1e-4)
    nothing = trajectory(rv.one_shot(EXACT, alpha=0.0, repeats=1), problem, 1, ALIKE)[-1]
    np.testing.assert_array_equal(nothing.server[0], np.zeros(4))  # all weights are zero, and no x_avg is used


CODECS = {"RandK": (rv.codecs.RandK(k=1), 0.03), "TopK": (rv.codecs.TopK(k=1), 0.03), "natural": (rv.codecs.NaturalCompression(), 0.1),
          "QSGD": (rv.codecs.QSGD(levels=2), 0.1)}


@pytest.mark.parametrize(("codec", "who"), [
    ("RandK", ALIKE), ("TopK", ALIKE), ("natural", rv.participation.Uniform(3, "uniform")), ("QSGD", rv.participation.Bernoulli(0.6, "uniform"))])
def test_diana_finds_the_closed_form_where_dcgd_stalls(codec, who):
    """Also with sampled parties: as h_k becomes the gradient, neither compression nor sampling leaves noise."""
    mixed, (codec, rate) = Mixed(ALPHA), CODECS[codec]
    settings = {"learning_rate": rate, "codec": codec, "alpha": ALPHA, "repeats": 1}
    exact = np.asarray(limit(rv.diana(EXACT, **settings), quadratic(), 6000, who).server.inner)
    np.testing.assert_allclose(exact, mixed.best, atol=1e-9)
    stalled = np.asarray(limit(rv.diana(EXACT, step=0.0, **settings), quadratic(), 6000, who).server.inner)
    assert 1e-2 < np.linalg.norm(stalled - mixed.best) < 10


def test_diana_by_numpy():
    """Every h_k, h and x over whole rounds, with the largest two entries kept."""
    mixed, rate, step = Mixed(ALPHA), 0.1, 0.4
    states = trajectory(rv.diana(EXACT, learning_rate=rate, codec=rv.codecs.TopK(k=2), step=step, alpha=ALPHA, repeats=1),
                        quadratic(), 8, ALIKE)
    x, h = np.zeros(4), np.zeros((6, 4))
    for state in states[1:]:
        gradients = mixed.a[:, None] * np.einsum("kij,kj->ki", mixed.h, mixed.deployed(x) - mixed.own)
        d = gradients - h
        d[np.arange(6)[:, None], np.argsort(np.abs(d), axis=1)[:, :2]] = 0
        x = x - rate * (h.mean(axis=0) + d.mean(axis=0))
        h = h + step * d
        np.testing.assert_allclose(state.server.inner, x, atol=1e-12)
        np.testing.assert_allclose(state.server.h[0], h.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(state.parties[1][0], h, atol=1e-12)


@pytest.mark.parametrize("preset", [rv.dgd, rv.dcgd, rv.diana], ids=lambda p: p.__name__)
def test_the_error_scales_with_the_square_of_alpha(preset):
    """With gamma as 1/alpha^2, x_t does not depend on alpha, and f's error is in proportion to alpha^2."""
    paths = []
    for alpha in (0.8, 0.2):
        algorithm = preset(EXACT, learning_rate=0.05 / alpha**2, alpha=alpha, repeats=1)
        paths.append([np.asarray(rv.combinators.ExplicitMixture(algorithm, solver=EXACT).server_model(s.server))
                      for s in trajectory(algorithm, quadratic(), 25, ALIKE)])
    np.testing.assert_allclose(*paths, atol=1e-12)
    errors = [[mixed.error(x) for x in path] for mixed, path in zip((Mixed(0.8), Mixed(0.2)), paths, strict=True)]
    np.testing.assert_allclose(errors[0], 16 * np.array(errors[1]), rtol=1e-7)


DESCENT = rv.solvers.GD(0.1, steps=3)
INNER = {
    "scaffold": lambda: (classification(), rv.scaffold(SOLVER)),
    "feddane": lambda: (quadratic(), rv.feddane(DESCENT)),
    "dgd": lambda: (classification(), DistributedGradient(0.2)),
}


@pytest.mark.parametrize("inner", INNER)
def test_alpha_one_is_the_inner_algorithm(inner):
    """Of any number of phases, with whatever a party keeps, and with sampled parties and minibatches."""
    problem, inner = INNER[inner]()
    plain = trajectory(inner, problem, 4, WHO)
    mixed = trajectory(rv.fedmix(DESCENT, alpha=1.0, inner=inner), problem, 4, WHO)
    equal([s.server for s in mixed], [s.server for s in plain])
    equal([s.parties[1] for s in mixed], [s.parties for s in plain])


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8])
def test_variance_of_the_deployed_models(alpha):
    """V(T_1(x), ..., T_n(x)) = (1-beta)^2 V(x_1, ..., x_n) for any x; with alpha = 0 a party uses its own optimum."""
    algorithm = rv.fedmix(rv.solvers.GD(0.3, steps=20), alpha=alpha, inner=rv.fedavg(rv.solvers.GD(0.1)), repeats=20)
    state = trajectory(algorithm, quadratic(), 3, rv.participation.Uniform(2))[-1]
    models, own = np.asarray(deployed(algorithm, quadratic(), state, jnp.arange(6))), state.parties[0]
    np.testing.assert_allclose(own, Mixed(1.0).own, atol=1e-10)
    np.testing.assert_allclose(np.var(models, axis=0).sum(), (1 - alpha)**2 * np.var(own, axis=0).sum(), rtol=1e-12)
    np.testing.assert_allclose(models, alpha * np.asarray(state.server) + (1 - alpha) * own, atol=1e-14)


def test_personalised_acceleration_is_accelerated_personalisation():
    """And both find FedMix's minimiser, by a splitting method whose parties solve the mixtures in closed form."""
    mixed, inner = Mixed(ALPHA), rv.fedpi(EXACT, eta=2.0)
    outside = rv.combinators.Anderson(rv.combinators.ExplicitMixture(inner, solver=EXACT, alpha=ALPHA))
    inside = rv.combinators.ExplicitMixture(rv.combinators.Anderson(inner), solver=EXACT, alpha=ALPHA)
    one, other = (trajectory(x, quadratic(), 30, ALIKE) for x in (outside, inside))
    equal([s.server for s in one], [s.server for s in other])
    np.testing.assert_allclose(outside.server_model(one[-1].server), mixed.best, atol=1e-7)
    models = deployed(inside, quadratic(), one[-1], jnp.arange(6))
    np.testing.assert_allclose(models, mixed.deployed(np.asarray(one[-1].server.inner.mean)), atol=1e-12)


@pytest.mark.parametrize("who", [WHO, rv.participation.BySize(3), rv.participation.Bernoulli(0.5)], ids=lambda w: type(w).__name__)
def test_server_memories_are_the_weighted_means_of_the_parties(who):
    """DIANA's h, for each phase, and L2GD's mean: whoever took part and whoever was late."""
    problem = quadratic()
    shares = np.asarray(who.shares(problem.sizes))

    def mean(rows):
        return jax.tree.map(lambda leaf: np.tensordot(shares, leaf, 1), rows)

    compressed = rv.combinators.Compressed(rv.feddane(DESCENT, stragglers="drop"), rv.codecs.RandK(k=2), 0.3)
    for state in trajectory(compressed, problem, 4, who):
        equal(state.server.h, mean(state.parties[1]))
    assert np.abs(state.server.h[1]).max() > 0
    for state in trajectory(rv.l2gd(DESCENT, lam=0.5, stragglers="drop"), problem, 4, who):
        equal(state.server[0], mean(state.parties))


def test_what_is_not_compressed_is_the_inner_algorithm():
    """With everybody there for any step; with sampled parties for a step of 0."""
    inner = rv.scaffold(DESCENT, stragglers="drop")
    for who, step in ((rv.participation.Full(), 0.7), (WHO, 0.0)):
        plain = trajectory(inner, quadratic(), 4, who)
        whole = trajectory(rv.combinators.Compressed(inner, rv.codecs.Identity(), step), quadratic(), 4, who)
        equal([s.server.inner for s in whole], [s.server for s in plain])
        equal([s.parties[0] for s in whole], [s.parties for s in plain])


def test_compressed_replies_are_counted_in_bits():
    problem = classification()  # 12 parameters in float64
    codec = rv.codecs.NaturalCompression()
    for inner, down, up in ((rv.fedavg(SOLVER), 96, 18), (rv.scaffold(SOLVER), 192, 36),
                            (rv.feddane(SOLVER), 288, 36), (rv.local(SOLVER), 0, 0)):
        algorithm = rv.combinators.Compressed(inner, codec, 0.5)
        assert message_bytes(algorithm, problem, initial(algorithm, problem, ALIKE, SEED)) == (down, up)
    fedmix = rv.diana(SOLVER, codec=rv.codecs.RandK(k=2), alpha=0.5, repeats=1)
    assert message_bytes(fedmix, problem, initial(fedmix, problem, ALIKE, SEED)) == (96 + 8, 2 * 8 + 4)


def test_refusals():
    rand = rv.codecs.RandK()
    linear = r"needs a linear aggregator, got {}: the server stores only the mean of h_k\. Use Mean\(\) or step=0\."
    for inner, name in ((rv.fedgeomed_plus(SOLVER), "MoreauCentre"), (rv.splitting(SOLVER), "Splitting"),
                        (rv.fedavg_plus(SOLVER, aggregate="all"), "StaleReplies"), (rv.one_shot(SOLVER), "OneShot"),
                        (rv.fedmix(SOLVER, inner=rv.combinators.Anderson(rv.fedpi(SOLVER))), "Splitting")):
        with pytest.raises(TypeError, match=r"Compressed\(step=0.5\) " + linear.format(name)):
            rv.combinators.Compressed(inner, rand, 0.5)
        rv.combinators.Compressed(inner, rand, 0)
    for inner in (rv.splitting(SOLVER, decentralised=True), rv.fedadam(SOLVER), rv.feddane(SOLVER), rv.ditto(SOLVER)):
        rv.combinators.Compressed(inner, rand, 0.5)
    with pytest.raises(TypeError, match="needs replies that are not compressed yet"):
        rv.combinators.Compressed(rv.fedmix(SOLVER, inner=rv.dcgd(SOLVER)), rand, 0)
    with pytest.raises(TypeError, match=r"StaleReplies needs .* got Compressed"):
        rv.combinators.StaleReplies(rv.combinators.Compressed(rv.fedavg(SOLVER), rand, 0))
    with pytest.raises(ValueError, match=r"Compressed\(step=1.5\) must lie in \[0, 1\]"):
        rv.diana(SOLVER, step=1.5)
    with pytest.raises(ValueError, match=r"ExplicitMixture\(alpha=1.2\) must lie in \[0, 1\]"):
        rv.fedmix(SOLVER, alpha=[0.5, 1.2])
    with pytest.raises(ValueError, match=r"alpha needs one number, or one per party \(6\), got shape \(2,\)"):
        trajectory(rv.fedmix(SOLVER, alpha=[0.5, 0.2]), quadratic(), 1)
    with pytest.raises(ValueError, match=r"L2GD\(p=1.0\) must lie in \(0, 1\): use local\(...\) for 0"):
        rv.l2gd(SOLVER, p=1.0)
    with pytest.raises(ValueError, match=r"L2GD pulls by learning_rate\*lam/p = 10, beyond the mean"):
        rv.l2gd(SOLVER, lam=10.0)
    with pytest.raises(TypeError, match="l2gd needs plain gradient steps, got ClosedForm"):
        rv.l2gd(EXACT)
