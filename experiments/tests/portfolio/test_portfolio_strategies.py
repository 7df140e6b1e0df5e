"""Strategies and baselines: closed forms, conditions of optimality, and plain NumPy twins."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import portfolio as pf
from resolvent.errors import InputError

FREE = pf.FirstOrderCosts(0.0)


@pytest.fixture(autouse=True, scope="module")
def _x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def closes():
    return np.cumprod(np.exp(0.03 * np.random.default_rng(3).normal(size=(41, 3))), axis=0)


@pytest.fixture(scope="module")
def relatives(closes):
    with jax.enable_x64(True):
        return pf.price_relatives(closes)


def last_wealth(strategy, relatives, costs=FREE):
    return float(pf.backtest(strategy, relatives, costs=costs).wealth[-1])


@pytest.mark.parametrize("costs", [pf.FirstOrderCosts(0.01), pf.ExactCosts(0.01, 0.02)], ids=lambda c: type(c).__name__)
def test_closed_forms(closes, relatives, costs):
    growth = closes[-1] / closes[0]
    assert last_wealth(pf.cash(3), relatives, costs) == 1
    assert last_wealth(pf.ubah(3), relatives, costs) == pytest.approx(0.99 * growth.mean(), rel=1e-12)
    assert last_wealth(pf.best_stock(relatives), relatives, costs) == pytest.approx(0.99 * growth.max(), rel=1e-12)
    y = np.asarray(relatives)
    assert last_wealth(pf.ucrp(3), relatives) == pytest.approx(y[:, 1:].mean(axis=1).prod(), rel=1e-12)
    assert last_wealth(pf.uniform_with_cash(3), relatives) == pytest.approx(y.mean(axis=1).prod(), rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_bcrp_satisfies_the_conditions_of_optimality(seed):
    """mean_t(y_i / (y . b)) is 1 where b_i is positive, and at most 1 elsewhere."""
    rng = np.random.default_rng(seed)
    y = np.exp(0.3 * rng.normal(size=(50, 6)) + 0.05 * rng.normal(size=6))
    b = np.asarray(pf.log_optimal_weights(jnp.asarray(y)))
    slope = (y / (y @ b)[:, None]).mean(axis=0)
    assert b.sum() == pytest.approx(1, abs=1e-12)
    assert b.min() >= 0
    assert slope.max() <= 1 + 1e-12
    np.testing.assert_allclose(slope[b > 1e-6], 1, atol=1e-9)
    assert np.sum(b > 1e-6) > 1


def test_bcrp_of_few_days_and_equal_assets():
    """The maximiser is not unique: two assets are equal, and there are more assets than days."""
    y = jnp.array([[1.0, 1.5, 1.5, 0.5, 0.9], [1.0, 0.6, 0.6, 1.4, 0.9]])
    b = pf.log_optimal_weights(y)
    assert jnp.max(jnp.mean(y / (y @ b)[:, None], axis=0)) <= 1 + 1e-12


def test_bcrp_is_the_best_of_its_class(relatives):
    best = last_wealth(pf.bcrp(relatives), relatives)
    for weights in np.random.default_rng(0).dirichlet(np.ones(4), 20):
        assert last_wealth(pf.ConstantRebalanced(jnp.asarray(weights)), relatives) <= best


def euclidean(point):
    """The nearest point of the simplex, by trying all supports."""
    return nearest_of_supports(np.eye(len(point)), -point)


def nearest_of_supports(matrix, linear):
    """The minimiser over the simplex of x'Px/2 + q'x: the best of the minimisers on the faces."""
    n, best, lowest = len(linear), None, np.inf
    for support in product((False, True), repeat=n):
        s = np.flatnonzero(support)
        if not len(s):
            continue
        system = np.block([[matrix[np.ix_(s, s)], np.ones((len(s), 1))], [np.ones((1, len(s))), np.zeros((1, 1))]])
        x = np.zeros(n)
        x[s] = np.linalg.solve(system, np.append(-linear[s], 1))[:-1]
        value = x @ matrix @ x / 2 + linear @ x
        if x.min() >= -1e-12 and value < lowest:
            best, lowest = x, value
    return best


def olmar_twin(closes, window, epsilon):
    """Li and Hoi's algorithm on closing prices."""
    b, weights = np.full(closes.shape[1], 1 / closes.shape[1]), []
    for t in range(len(closes) - 1):
        predicted = closes[max(0, t - window + 1):t + 1].mean(axis=0) / closes[t]
        deviation = predicted - predicted.mean()
        if deviation @ deviation > 0:
            b = euclidean(b + max(0, (epsilon - b @ predicted) / (deviation @ deviation)) * deviation)
        weights.append(b)
    return weights


@pytest.mark.parametrize(("window", "epsilon"), [(5, 10.0), (12, 1.05), (3, 1.001), (1, 2.0)])
def test_olmar_is_its_twin(closes, relatives, window, epsilon):
    weights = pf.backtest(pf.OLMAR(window, epsilon), relatives).weights
    np.testing.assert_array_equal(weights[:, 0], 0)
    np.testing.assert_allclose(weights[:, 1:], olmar_twin(closes, window, epsilon), atol=1e-9)


def ons_twin(y, eta, beta, delta):
    """The algorithm of Agarwal, Hazan, Kale and Schapire on relative prices."""
    n = y.shape[1]
    p, a, gradients, weights = np.full(n, 1 / n), np.eye(n), np.zeros(n), [np.full(n, 1 / n)]
    for row in y[:-1]:
        gradient = row / (row @ p)
        a, gradients = a + np.outer(gradient, gradient), gradients + gradient
        target = delta * np.linalg.solve(a, (1 + 1 / beta) * gradients)
        p = (1 - eta) * nearest_of_supports(a, -a @ target) + eta / n
        weights.append(p)
    return weights


@pytest.mark.parametrize(("eta", "beta", "delta"), [(0.0, 1.0, 0.125), (0.1, 0.01, 1.0)])
def test_ons_is_its_twin(relatives, eta, beta, delta):
    weights = pf.backtest(pf.ONS(eta, beta, delta), relatives).weights
    np.testing.assert_array_equal(weights[:, 0], 0)
    np.testing.assert_allclose(weights[:, 1:], ons_twin(np.asarray(relatives)[:, 1:], eta, beta, delta), atol=1e-9)
    assert np.ptp(weights[-1]) > 0.01


def test_history_is_observed_before_the_first_decision(relatives):
    """OLMAR's weights depend on the prices of its window only, once it has decided from the same weights."""
    early = pf.backtest(pf.OLMAR(3, 1.0), relatives[10:], history=relatives[:10]).weights[0]
    assert np.ptp(early) > 0.1
    np.testing.assert_array_equal(
        early, pf.backtest(pf.OLMAR(3, 1.0), relatives[10:], history=relatives[8:10]).weights[0])


@pytest.mark.parametrize("strategy", [pf.OLMAR(), pf.ONS(), pf.ucrp(3), pf.ubah(3)], ids=lambda s: type(s).__name__)
def test_later_prices_do_not_change_earlier_weights(relatives, strategy):
    changed = relatives.at[20:, 1:].multiply(jnp.array([1.2, 0.7, 1.0]))
    before, after = (pf.backtest(strategy, rows).weights for rows in (relatives, changed))
    np.testing.assert_array_equal(before[:21], after[:21])


def test_baselines_have_weights_and_hindsight_is_marked(relatives):
    strategies = pf.baselines(relatives)
    results = {name: pf.backtest(strategy, relatives, costs=FREE) for name, strategy in strategies.items()}
    for result in results.values():
        np.testing.assert_allclose(result.weights.sum(axis=1), 1, atol=1e-12)
        assert result.weights.min() >= 0
    assert [name for name in results if "hindsight" in name] == ["best stock (hindsight)", "BCRP (hindsight)"]
    assert results["BCRP (hindsight)"].wealth[-1] >= results["best stock (hindsight)"].wealth[-1] - 1e-12


def test_float32_prices_give_float32_results(relatives):
    rows = relatives.astype(jnp.float32)
    for strategy in (pf.OLMAR(), pf.ONS(), pf.bcrp(rows)):
        single, double = (pf.backtest(strategy, y).growth for y in (rows, relatives))
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, double, atol=1e-3)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: pf.ucrp(0), r"assets=0\) must lie in \[1, inf\)"),
    (lambda: pf.ConstantRebalanced(jnp.array([0.5, 0.6])), "the sum 1.1"),
    (lambda: pf.BuyAndHold(jnp.array([1.5, -0.5])), "the minimum -0.5"),
    (lambda: pf.OLMAR(window=0), "window=0"),
    (lambda: pf.OLMAR(epsilon=0.5), "epsilon=0.5"),
    (lambda: pf.ONS(beta=0.0), "beta=0.0"),
])
def test_mistakes_are_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
