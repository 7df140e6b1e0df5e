"""FedMix's objectives as a problem: equal to the preset's, with a minimiser computed by SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import nightly
import resolvent as rv
from resolvent.errors import InputError
from resolvent.problem.maps import Mixture, through
from resolvent.problem.mixed import mixed
from resolvent.problem.problems import least_squares, logistic_data

ALPHA, SIZES = 0.6, np.array([30, 50])
SQUARES = {"parties": 3, "samples": 9, "features": 4, "heterogeneity": 0.7, "seed": 1}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def data():
    rng = np.random.default_rng(5)
    x = [rng.normal(m, 1, (n, 3)) for m, n in zip((0, 1), SIZES, strict=True)]
    y = [(a @ true + rng.normal(size=len(a)) > 0).astype(int)
         for a, true in zip(x, rng.normal(size=(2, 3)), strict=True)]
    return rv.FederatedData.from_arrays(x, y, validation=0, test=0, classes=["0", "1"])


def by_hand(x, y, w):
    """The mean logistic loss with l2 = 0.1 of [weights, bias], in NumPy."""
    logit = x @ w[:3] + w[3]
    return np.mean(np.logaddexp(0, logit) - y * logit) + 0.05 * w @ w


def flat(w):
    return np.concatenate([np.ravel(w["weight"]), np.ravel(w["bias"])])


@pytest.mark.when_changed
def test_a_mixture_of_quadratics_is_what_the_oracles_say():
    plain, mix = least_squares(**SQUARES), least_squares(**SQUARES, alpha=ALPHA)
    rng = np.random.default_rng(0)
    for k in map(jnp.array, range(3)):
        optima = jnp.linalg.solve(plain.hessians[k], plain.linears[k])
        for w in jnp.asarray(rng.normal(size=(3, 4))):
            expected = through(plain.oracle(k), Mixture(ALPHA, optima))
            np.testing.assert_allclose(mix.oracle(k).value(w), expected.value(w), rtol=1e-12)
            np.testing.assert_allclose(mix.oracle(k).grad(w), expected.grad(w), rtol=1e-9, atol=1e-12)
    shares = jnp.full(3, 1 / 3)
    np.testing.assert_allclose(mix.optimum(shares), plain.optimum(shares), rtol=1e-9)
    assert least_squares(**SQUARES, alpha=1.0).constants.tolist() == plain.constants.tolist()


@nightly.parametrize("preset", [rv.dcgd, rv.diana], per_commit=0)
def test_the_preset_and_the_problem_are_the_same_method(preset):
    """The preset on f_k and plain gradients on the mixture give equal models in every round, with compression too."""
    codec, shares = rv.codecs.RandK(k=2), jnp.full(3, 1 / 3)
    plain, mix = least_squares(**SQUARES), least_squares(**SQUARES, alpha=ALPHA)

    def run(problem, alpha, *own_optimum):
        method = preset(*own_optimum, learning_rate=0.02, codec=codec, alpha=alpha)
        return rv.simulate(method, problem, rounds=40, evaluate_every=40, progress=False)

    direct, mixture = run(plain, ALPHA, rv.solvers.ClosedForm()), run(mix, 1.0)
    np.testing.assert_allclose(direct.server_model, mixture.server_model, rtol=1e-10)
    gap = mixture.metrics.query("metric == 'gap'")["value"].to_numpy()
    assert gap[-1] == pytest.approx(ALPHA**2 * float(plain.gap(direct.server_model, shares)), rel=1e-9)
    assert 0 < gap[-1] < gap[0]


@pytest.mark.when_changed
def test_logistic_data_against_another_program():
    problem, parts = logistic_data(data=data(), l2=0.1, alpha=ALPHA), data()
    pairs = [parts.party(k) for k in range(2)]
    options = {"method": "BFGS", "options": {"gtol": 1e-9}}
    optima = [minimize(lambda w, p=p: by_hand(*p, w), np.zeros(4), **options).x for p in pairs]

    def objective(w):
        return sum(n / SIZES.sum() * by_hand(*p, ALPHA * w + (1 - ALPHA) * x)
                   for n, p, x in zip(SIZES, pairs, optima, strict=True))

    best = minimize(objective, np.zeros(4), **options)
    np.testing.assert_allclose(flat(problem.optimum(None)), best.x, atol=1e-6)
    w = jax.tree.map(lambda leaf: leaf + 0.3, problem.minimiser)
    assert float(problem.gap(w, None)) == pytest.approx(objective(flat(w)) - best.fun, rel=1e-6)
    assert float(problem.gap(problem.minimiser, None)) == 0
    # Of the party's mixture, without l2.
    loss, accuracy = jax.jit(lambda w: problem.evaluate_party(w, jnp.array(0), jnp.array(0)))(w)
    t = ALPHA * flat(w) + (1 - ALPHA) * optima[0]
    assert float(loss) == pytest.approx(by_hand(*pairs[0], t) - 0.05 * t @ t, rel=1e-6)
    assert float(accuracy) == np.mean((pairs[0][0] @ t[:3] + t[3] > 0) == pairs[0][1])


@pytest.mark.when_changed
def test_what_has_no_minimiser_is_refused(monkeypatch):
    for alpha in (0.0, 1.5):
        with pytest.raises(InputError, match=r"alpha=.* must lie in \(0, 1\]"):
            mixed(least_squares(**SQUARES), alpha)
        with pytest.raises(InputError, match=r"alpha=.* must lie in \(0, 1\]"):
            logistic_data(data=data(), alpha=alpha)
    with pytest.raises(InputError, match="unique minimiser"):
        mixed(rv.problems.QuadraticProblem(jnp.ones((2, 2, 2)), jnp.ones((2, 2))), 0.5)
    with pytest.raises(InputError, match=r"l2=0\) must lie in \(0, inf\)"):
        logistic_data(data=data(), l2=0)
    with pytest.raises(InputError, match="must be for classification, not regression"):
        logistic_data(data=rv.datasets.sines(parties=2))
    monkeypatch.setattr("resolvent.problem.mixed._MAX_STEPS", 1)
    for alpha, objective in ((1.0, "mixed objective"), (0.5, "objective f_")):
        with pytest.raises(InputError, match=f"no minimiser of the {objective}.* was found .* positive l2"):
            mixed(rv.problems.LearningProblem(rv.models.logistic(3, 2), data()), alpha)
