"""Portfolio agents: policies, gradients, the portfolio-vector memory, synthetic years, and that nothing looks ahead."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import nightly
import resolvent as rv
from experiments import portfolio as pf

LOOKBACK, ASSETS = 5, 3
POLICIES = {make.__name__: make(lookback=LOOKBACK, units=4) for make in (pf.eiie_cnn, pf.eiie_rnn, pf.eiie_lstm)}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def market(days=40, parties=3, seed=0, **options):
    rng = np.random.default_rng(seed)
    closes = np.exp(0.03 * np.cumsum(rng.normal(size=(days, 5)), axis=0))
    dates = np.datetime64("2019-01-01") + np.arange(days)
    options = {"train_until": str(dates[days - 12]), "parties": parties, "assets": ASSETS} | options
    return pf.draw_markets(pf.Prices(dates, tuple("ABCDE"), closes), **options)


@jax.jit
def minibatch(oracle, params, memory, positions, mask):
    return oracle.batch_grad(params, positions, mask, memory)


@functools.cache
def params_of(policy):
    """Parameters of which none is zero."""
    flat, unravel = ravel_pytree(policy.init(jax.random.key(0)))
    return unravel(flat + 0.5 * jax.random.normal(jax.random.key(1), flat.shape))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_policy_treats_assets_alike_and_returns_weights(policy):
    closes, params = market().closes(0)[:LOOKBACK], params_of(policy)
    previous = jnp.array([0.1, 0.5, 0.1, 0.3])

    @jax.jit
    def weights(closes, previous):
        return policy.weights(params, policy.votes(params, closes / closes[-1]), previous)

    w, order = weights(closes, previous), np.array([2, 0, 1])
    assert (w > 0).all()
    np.testing.assert_allclose(w.sum(), 1, atol=1e-15)
    moved = weights(closes[:, order], previous[jnp.array([0, *(1 + order)])])
    np.testing.assert_allclose(moved, w[jnp.array([0, *(1 + order)])], atol=1e-15)
    np.testing.assert_array_equal(weights(closes * np.array([4, 1, 0.5]), previous), w)
    assert jnp.ptp(w[1:]) > 1e-3


@pytest.mark.parametrize("policy", [
    pytest.param(policy, id=name, marks=() if name == "eiie_cnn" else pytest.mark.nightly)
    for name, policy in POLICIES.items()])
def test_gradients_are_central_differences(policy):
    """Of the whole objective, and of a minibatch with its memory: jumps in the positions break the chain of costs."""
    oracle = pf.problem(market(), policy, rate=0.02, discount=0.9).oracle(jnp.array(0))
    params = params_of(policy)
    flat, unravel = ravel_pytree(params)
    direction = jax.random.normal(jax.random.key(2), flat.shape)
    positions, mask = jnp.array([3, 4, 5, 9, 10, 0]), jnp.array([True, True, True, True, False, True])
    memory = jax.nn.softmax(jax.random.normal(jax.random.key(3), oracle.init_memory(params).shape))
    visited = positions.tolist()

    @jax.jit
    def reward(flat):
        """The minibatch objective, written out day by day."""
        total, weight = 0.0, 0.0
        outputs = {}
        closes = oracle.closes[0]
        for b, (p, used) in enumerate(zip(visited, mask.tolist(), strict=True)):
            window = closes[p:p + LOOKBACK]
            votes = policy.votes(unravel(flat), window / window[-1])
            outputs[b] = policy.weights(unravel(flat), votes, memory[p])
            before = outputs[b - 1] if b and visited[b - 1] == p - 1 else memory[p]
            today = p + LOOKBACK - 1
            earlier, relatives = (jnp.concatenate([jnp.ones(1), closes[t + 1] / closes[t]]) for t in (today - 1, today))
            factor = pf.FirstOrderCosts(0.02).factor(pf.drift(before, earlier), outputs[b])
            if used:
                total += 0.9**b * jnp.log(factor * (outputs[b] @ relatives))
                weight += 0.9**b
        return -total / weight, jnp.stack(list(outputs.values()))

    def slope(f, step=1e-6):
        return (f(flat + step * direction) - f(flat - step * direction)) / (2 * step)

    gradient, after = minibatch(oracle, params, memory, positions, mask)
    np.testing.assert_allclose(ravel_pytree(gradient)[0] @ direction, slope(lambda v: reward(v)[0]), rtol=1e-6)
    used, after = np.asarray(positions)[np.asarray(mask)], np.asarray(after)
    np.testing.assert_allclose(after[used + 1], np.asarray(reward(flat)[1])[np.asarray(mask)], atol=1e-14)
    untouched = np.setdiff1d(np.arange(len(memory)), used + 1)
    np.testing.assert_array_equal(after[untouched], np.asarray(memory)[untouched])
    value = jax.jit(lambda v: oracle.value(unravel(v)))
    of_value = ravel_pytree(jax.jit(lambda w: oracle.grad(w))(params))[0]
    np.testing.assert_allclose(of_value @ direction, slope(value), rtol=1e-6)


def test_the_stored_memory_converges_to_the_recomputed_chain():
    """At fixed parameters, consecutive minibatches from random starts, many times over all days."""
    policy = POLICIES["eiie_cnn"]
    oracle = pf.problem(market(), policy).oracle(jnp.array(1))
    params, n, size = params_of(policy), int(oracle.samples), 6
    starts = jax.random.randint(jax.random.key(0), (400,), 0, n - size + 1)

    def visit(memory, start):
        return oracle.batch_grad(params, start + jnp.arange(size), jnp.ones(size, bool), memory)[1], None

    memory = jax.lax.scan(visit, oracle.init_memory(params), starts)[0]
    chain = jax.jit(lambda w: oracle.weights(w))(params)
    np.testing.assert_array_equal(memory[0], oracle.init_memory(params)[0])
    np.testing.assert_allclose(memory[1:], chain, atol=1e-12)
    # From 5 days before, the recurrence has almost forgotten its start; at the first days it is exact.
    positions, mask = jnp.arange(n), jnp.ones(n, bool)
    stored = ravel_pytree(minibatch(oracle, params, memory, positions, mask)[0])[0]
    recomputed = ravel_pytree(minibatch(replace(oracle, is_stored=False), params, (), positions, mask)[0])[0]
    np.testing.assert_allclose(recomputed, stored, atol=2e-4 * jnp.abs(stored).max())
    assert replace(oracle, is_stored=False).init_memory(params) == ()


@nightly.parametrize("lag", [1, 0])
def test_back_tests_are_those_of_the_strategy_that_observes_day_by_day(lag):
    data, policy = market(), POLICIES["eiie_rnn"]
    problem, params = pf.problem(data, policy, lag=lag), params_of(policy)
    result = jax.jit(lambda w: problem.backtest(w, 2))(params)
    until_train = data.closes(2)[:data.periods[2].first + 1]
    expected = pf.backtest(pf.PolicyStrategy(policy, params), pf.price_relatives(data.closes(2, "test")),
                           history=pf.price_relatives(until_train), lag=lag)
    assert len(result.growth) == 11
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), result, expected)
    report, empty = jax.jit(lambda w: [problem.report(w, jnp.array(2), jnp.array(i)) for i in (2, 1)])(params)
    np.testing.assert_allclose(report["sharpe_ratio"], pf.sharpe_ratio(expected.growth))
    np.testing.assert_allclose(report["loss"], -np.log(expected.growth).mean())
    assert np.isnan(empty["loss"])  # no validation period
    closes = data.closes(2)[:LOOKBACK + lag + 1]  # of the first decision for training
    days = problem.oracle(jnp.array(2))._days(jnp.array([0]))
    np.testing.assert_allclose(days.windows[:, 0], closes[:LOOKBACK] / closes[LOOKBACK - 1], rtol=1e-12)
    np.testing.assert_allclose(days.relatives[0, 1:], closes[-1] / closes[-2], rtol=1e-12)


def test_later_prices_change_neither_earlier_weights_nor_training():
    data, policy = market(), POLICIES["eiie_cnn"]
    first = data.periods[2].first
    changed, missing = data.filled.copy(), data.filled.copy()
    changed[first + 4:] *= 1.7 * np.arange(1, 6)
    missing[first + 1:] = np.nan
    results = [pf.problem(replace(data, filled=closes), policy).backtest(params_of(policy), 0)
               for closes in (data.filled, changed)]
    np.testing.assert_array_equal(results[0].weights[:4], results[1].weights[:4])  # decided at closes first, ..., +3
    assert (results[0].weights[5:] != results[1].weights[5:]).any()
    solver = rv.solvers.adam(0.01, batch_size=8, steps=3, keep=True, batches=rv.solvers.Consecutive(0.05))
    digests = [rv.simulate(rv.fedavg_plus(solver), pf.problem(replace(data, filled=closes), policy), rounds=2,
                           progress=False).digest for closes in (data.filled, missing)]
    assert digests[0] == digests[1]


def test_the_year_of_a_round_is_appended_or_replaces_the_real_days():
    data, policy = market(), POLICIES["eiie_cnn"]
    years = np.exp(0.01 * np.random.default_rng(1).normal(size=(3, 2, 7, ASSETS)))
    real = data.closes(1)[:data.periods[0].days + 1]
    synthetic = real[-1] * np.cumprod(years[1, 1], axis=0)
    for panel, start in (("appended", 0), ("recent", len(real) - LOOKBACK)):
        problem = pf.problem(data, policy, augmented=years, rounds_per_year=10, panel=panel)
        for t, year in ((0, 0), (9, 0), (10, 1), (19, 1), (20, 0)):
            assert int(problem.at(jnp.array(t)).year) == year
        oracle = problem.at(jnp.array(15)).oracle(jnp.array(1))
        np.testing.assert_allclose(oracle.closes[0] * real[-1], np.concatenate([real[start:], synthetic]), rtol=1e-12)
        assert int(oracle.samples) == len(real) - start + 7 - LOOKBACK == problem.sizes[1]
        assert int(problem.oracle(jnp.array(1)).samples) == len(real) - LOOKBACK  # evaluations are of real prices


def test_pooled_data_are_the_windows_of_all_parties():
    problem, params = pf.problem(market(), POLICIES["eiie_cnn"]), params_of(POLICIES["eiie_cnn"])
    pooled, n = problem.pooled().oracle(jnp.array(0)), int(problem.sizes[0])
    assert int(pooled.samples) == 3 * n
    memory, mask = pooled.init_memory(params), jnp.ones(4, bool)
    alone = problem.oracle(jnp.array(1))
    gradient, after = minibatch(pooled, params, memory, n + 2 + jnp.arange(4), mask)
    expected, of_party = minibatch(alone, params, alone.init_memory(params), 2 + jnp.arange(4), mask)
    np.testing.assert_allclose(ravel_pytree(gradient)[0], ravel_pytree(expected)[0], atol=1e-15)
    np.testing.assert_array_equal(after[n + 1:2 * (n + 1)], of_party)
    # A minibatch that spans two markets begins the second one from its own first weights.
    _, across = minibatch(pooled, params, memory, n - 2 + jnp.arange(4), mask)
    np.testing.assert_allclose(across[n + 2], jax.jit(lambda w: alone.weights(w))(params)[0], atol=1e-15)
    values = jax.jit(lambda w: jnp.stack([problem.oracle(k).value(w) for k in range(3)]))(params)
    np.testing.assert_allclose(jax.jit(lambda w: pooled.value(w))(params), values.mean())


def test_markets_have_nested_universes_and_successive_periods():
    data = market(parties=4, train_until="2019-01-20", validate_until="2019-01-25", test_until="2019-02-03")
    assert [tuple(period) for period in data.periods] == [(0, 19), (19, 5), (24, 9)]
    assert data.notes[1] == "validation: 5 days from 2019-01-21 to 2019-01-25"
    np.testing.assert_array_equal(data.universes[:2], market(parties=2).universes)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(data.universes, [rng.choice(5, ASSETS, replace=False) for _ in range(4)])
    assert data.closes(0, "validation").shape == (6, ASSETS)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: market(train_until="2020-01-01"), "must be successive dates"),
    (lambda: market(train_until="soon"), r"draw_markets\(train_until\): .*not a date"),
    (lambda: market(assets=6), "must be at most 5"),
    (lambda: pf.problem(market(), pf.eiie_cnn(lookback=40)), "needs at least 42"),
    (lambda: pf.problem(market(), POLICIES["eiie_cnn"], augmented=np.ones((3, 2, 7, 2))), r"give \[3, years, days"),
    (lambda: pf.problem(market(), discount=0.0), r"problem\(discount=0.0\)"),
    (lambda: pf.eiie_cnn(lookback=2), r"lookback=2\) must be at least 3"),
])
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(rv.InputError, match=message):
        make()
