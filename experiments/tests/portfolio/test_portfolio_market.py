"""The market: drift, cost factors, back-tests and metrics against closed forms and plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typing_extensions import override

from experiments import portfolio as pf
from experiments.portfolio.strategies import Strategy
from resolvent.errors import InputError

RATES = (0.002, 0.003)  # purchase, sale


@pytest.fixture(autouse=True, scope="module")
def _x64():
    with jax.enable_x64(True):
        yield


def random_weights(rng, count, size=6, zeros=0.3):
    w = rng.dirichlet(np.ones(size), count) * (rng.random((count, size)) > zeros) + 1e-300
    return w / w.sum(axis=1, keepdims=True)


def random_relatives(seed=0, days=30, assets=4):
    rng = np.random.default_rng(seed)
    return np.concatenate([np.ones((days, 1)), np.exp(0.03 * rng.normal(size=(days, assets)))], axis=1)


def fixed_point(drifted, target, purchase, sale):
    """The cost factor by the iteration of Jiang, Xu and Liang, Theorem 1."""
    mu, previous = 1.0, 2.0
    while abs(mu - previous) > 1e-16:
        previous = mu
        sold = np.maximum(drifted[1:] - mu * target[1:], 0).sum()
        mu = (1 - purchase * drifted[0] - (sale + purchase - sale * purchase) * sold) / (1 - purchase * target[0])
    return mu


def budget_factor(drifted, target, purchase, sale):
    """The cost factor at which cash and the revenue of sales pay for the purchases, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(100):
        mu = (low + high) / 2
        change = mu * target - drifted
        cash = -change[0] + (1 - sale) * np.maximum(-change[1:], 0).sum()
        low, high = (mu, high) if (1 - purchase) * cash > np.maximum(change[1:], 0).sum() else (low, mu)
    return mu


@pytest.mark.parametrize("rates", [RATES, (0.3, 0.4), (0.0, 0.1), (0.9, 0.9)])
def test_exact_factor_solves_the_budget_equation(rates):
    rng = np.random.default_rng(0)
    drifted, target = random_weights(rng, 40), random_weights(rng, 40)
    mu = jax.vmap(pf.ExactCosts(*rates).factor)(jnp.asarray(drifted), jnp.asarray(target))
    pairs = list(zip(drifted, target, strict=True))
    np.testing.assert_allclose(mu, [budget_factor(*pair, *rates) for pair in pairs], atol=1e-12)
    np.testing.assert_allclose(mu, [fixed_point(*pair, *rates) for pair in pairs], atol=1e-12)


def test_exact_factor_of_simple_trades():
    cash, first, second = jnp.eye(3)
    purchase, sale = RATES
    factor = pf.ExactCosts(*RATES).factor
    np.testing.assert_allclose(
        [factor(cash, first), factor(first, cash), factor(first, second)],
        [1 - purchase, 1 - sale, (1 - purchase) * (1 - sale)], atol=1e-15)
    mixture = jnp.array([0.2, 0.5, 0.3])
    assert factor(mixture, mixture) == 1
    assert pf.FirstOrderCosts().factor(mixture, mixture) == 1
    assert pf.FirstOrderCosts().factor(cash, mixture) == pytest.approx(1 - 0.002 * 0.8)


def test_first_order_is_exact_up_to_the_square_of_the_rate():
    rng = np.random.default_rng(1)
    pairs = [jnp.asarray(random_weights(rng, 200)) for _ in range(2)]
    exact, first_order = (jax.vmap(costs.factor)(*pairs) for costs in (pf.ExactCosts(), pf.FirstOrderCosts()))
    assert 1e-7 < jnp.max(jnp.abs(exact - first_order)) <= 0.002**2


@pytest.mark.parametrize("costs", [pf.ExactCosts(*RATES), pf.FirstOrderCosts(0.01)], ids=lambda c: type(c).__name__)
def test_gradients_of_factors_are_central_differences(costs):
    drifted, target = (jnp.asarray(w[0]) for w in np.split(random_weights(np.random.default_rng(2), 2, zeros=0), 2))
    for argument in (0, 1):
        gradient = jax.grad(costs.factor, argument)(drifted, target)
        points = [[drifted, target] for _ in range(2)]
        differences = []
        for step in 1e-6 * jnp.eye(len(drifted)):
            points[0][argument] = (drifted, target)[argument] + step
            points[1][argument] = (drifted, target)[argument] - step
            differences.append((costs.factor(*points[0]) - costs.factor(*points[1])) / 2e-6)
        np.testing.assert_allclose(gradient, differences, atol=1e-8)


def test_prices_give_relatives_and_drift_is_the_share_of_the_wealth():
    closes = np.array([[10.0, 4.0], [12.0, 2.0]])
    relatives = pf.price_relatives(closes)
    np.testing.assert_allclose(relatives, [[1, 1.2, 0.5]])
    amounts = np.array([3.0, 2 * 10.0, 5 * 4.0])
    later = np.array([3.0, 2 * 12.0, 5 * 2.0])
    np.testing.assert_allclose(pf.drift(jnp.asarray(amounts / amounts.sum()), relatives[0]), later / later.sum())


class LastWinner(Strategy):
    """All wealth in the asset that grew most on the last known day; cash if no day is known."""

    @override
    def init(self, assets):
        return jax.nn.one_hot(0, assets + 1)

    @override
    def observe(self, state, relatives):
        return jax.nn.one_hot(jnp.argmax(relatives), len(relatives))

    @override
    def decide(self, state, drifted):
        return state, state


def looped(decide, relatives, rates):
    """Growth of each day by a loop; ``decide`` returns the weights from the day and the drifted weights."""
    drifted, growth = np.eye(relatives.shape[1])[0], []
    for t, y in enumerate(relatives):
        w = decide(t, drifted)
        growth.append(fixed_point(drifted, w, *rates) * (w @ y))
        drifted = w * y / (w @ y)
    return growth


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_backtest_is_a_plain_loop(lag):
    """With a lag the strategy knows the days before t - lag only."""
    rows = random_relatives()
    history, relatives = rows[:4], rows[4:]
    result = pf.backtest(LastWinner(), relatives, costs=pf.ExactCosts(*RATES), history=history, lag=lag)
    winner = np.eye(rows.shape[1])[np.argmax(rows, axis=1)]
    expected = looped(lambda t, _: winner[4 + t - 1 - lag], relatives, RATES)
    np.testing.assert_allclose(result.growth, expected, rtol=1e-13)
    np.testing.assert_allclose(result.wealth, np.cumprod(expected), rtol=1e-13)


def test_strategy_without_history_decides_before_it_knows_a_price():
    result = pf.backtest(LastWinner(), random_relatives())
    np.testing.assert_array_equal(result.weights[0], np.eye(5)[0])
    assert result.growth[0] == 1


def test_backtests_can_be_mapped_over_universes():
    relatives = jnp.stack([jnp.asarray(random_relatives(seed)) for seed in range(3)])
    mapped = jax.vmap(lambda rows: pf.backtest(pf.OLMAR(), rows).growth)(relatives)
    np.testing.assert_allclose(mapped, [pf.backtest(pf.OLMAR(), rows).growth for rows in relatives], rtol=1e-12)


def test_metrics_are_their_definitions():
    result = pf.backtest(LastWinner(), random_relatives(days=60))
    growth, wealth = np.asarray(result.growth), np.concatenate([[1], np.cumprod(result.growth)])
    drifted = [pf.drift(w, y) for w, y in zip(result.weights, jnp.asarray(random_relatives(days=60)), strict=True)]
    before = np.stack([np.eye(5)[0], *drifted[:-1]])
    measured = pf.metrics(result)
    np.testing.assert_allclose(measured, [
        wealth[-1], wealth[-1] ** (252 / 60) - 1, np.sqrt(252) * (growth - 1).mean() / (growth - 1).std(),
        max(1 - wealth[j] / wealth[i] for i in range(61) for j in range(i, 61)),
        np.abs(before - result.weights)[:, 1:].sum(axis=1).mean(), result.weights[:, 0].mean(),
        result.weights.max(axis=1).mean()], rtol=1e-10)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: pf.price_relatives(np.ones((1, 3))), "at least 2 days"),
    (lambda: pf.price_relatives(np.array([[1.0, 2.0], [1.0, np.nan]])), "day 1 in column 1.*Prices.filled"),
    (lambda: pf.backtest(pf.ucrp(3), random_relatives()), "has 4 weights, and the prices have 4 assets"),
    (lambda: pf.backtest(pf.ucrp(4), -random_relatives()), "on day 0 in column 0 must be a positive number"),
    (lambda: pf.backtest(pf.ucrp(4), random_relatives()[0]), r"shape \(5,\)"),
    (lambda: pf.backtest(pf.ucrp(4), random_relatives()[:0]), "has no day"),
    (lambda: pf.backtest(pf.ucrp(4), random_relatives(), history=random_relatives(assets=3)), "has 4 columns"),
    (lambda: pf.backtest(pf.ucrp(4), random_relatives(), lag=1), "integer from 0 to 0"),
    (lambda: pf.ExactCosts(1.0), r"purchase=1.0\) must lie in \[0, 1\)"),
    (lambda: pf.FirstOrderCosts(0.5), r"must lie in \[0, 1/2\)"),
])
def test_mistakes_are_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_real_universes_have_the_known_baselines(real_data):
    """50 random universes of 9 stocks in 2019, at 0.2 % of first order: means of return, Sharpe ratio and drawdown."""
    prices = pf.read_prices(str(real_data / "stocks" / "sp500_tech50_adjclose_2006_2019.csv.gz"))
    year = prices.between("2019-01-01", "2019-12-31", preceding=1)
    rng = np.random.default_rng(0)
    relatives = jnp.stack([pf.price_relatives(year.closes[:, rng.choice(50, 9, replace=False)]) for _ in range(50)])
    assert relatives.shape == (50, 252, 10)

    def means(strategy):
        costs = pf.FirstOrderCosts(0.002)
        of_universe = jax.vmap(lambda rows: pf.metrics(pf.backtest(strategy, rows, costs=costs)))(relatives)
        return [float(jnp.mean(x)) for x in
                (of_universe.annual_return, of_universe.sharpe_ratio, of_universe.max_drawdown)]

    np.testing.assert_allclose(means(pf.ucrp(9)), [0.3586, 1.840, 0.111], atol=6e-4)
    np.testing.assert_allclose(means(pf.ubah(9))[:2], [0.3669, 1.863], atol=6e-4)
    np.testing.assert_allclose(means(pf.uniform_with_cash(9))[:2], [0.3191, 1.840], atol=6e-4)
