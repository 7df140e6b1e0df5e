"""Loops in lanes: a queue makes exactly the steps of each loop, and few idle steps."""

import heapq

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resolvent.problem.solvers.lbfgs import lbfgs
from resolvent.xla import loops

COUNTS = np.array([3, 40, 1, 0, 7, 7, 0, 12, 2, 1, 1, 5])  # a power law, with two loops of no steps


def makespan(counts, width):
    """Steps until the last of ``width`` machines has finished, if the longest job starts first."""
    ends = [0] * width
    for n in sorted(counts, reverse=True):
        heapq.heappush(ends, heapq.heappop(ends) + int(n))
    return max(ends)


def logistic_map(rate, count, x):
    """Chaotic: one step more or less changes the result."""
    return loops.fori_loop(lambda i, v: rate * v * (1 - v) + i * 1e-3, x, total=count)


def expected(rates, counts, x):
    out = []
    for rate, n, v in zip(rates, counts, x, strict=True):
        for i in range(n):
            v = rate * v * (1 - v) + i * 1e-3
        out.append(v)
    return np.array(out)


@pytest.mark.parametrize("width", [1, 3, 20])
def test_a_queue_is_the_loops_and_wastes_what_the_longest_first_must(width):
    counts, rates, x = jnp.asarray(COUNTS), np.linspace(3.5, 3.9, 12), np.linspace(0.1, 0.6, 12)
    with jax.enable_x64(True):
        actual = jax.jit(lambda c, r, x: loops.run_queue(
            lambda consts, s: s[0] < consts[1],
            lambda consts, s: (s[0] + 1, consts[0] * s[1] * (1 - s[1]) + s[0] * 1e-3),
            (r, c), (jnp.zeros_like(c), x), c, width=width))(counts, jnp.asarray(rates), jnp.asarray(x))
        np.testing.assert_array_equal(actual.state[0], COUNTS)
        np.testing.assert_allclose(actual.state[1], expected(rates, COUNTS, x), rtol=1e-9)
    lanes = min(width, len(COUNTS))
    assert int(actual.steps) == lanes * makespan(COUNTS, lanes)


def test_useful_work_beside_plain_lanes():
    """The queue satisfies Graham's bound for the longest job first, 4/3 of the optimum; plain lanes do not."""
    lengths, width = np.round(2 * (1 - np.random.default_rng(0).uniform(size=64)) ** -0.7).astype(int), 4
    queue = loops.run_queue(lambda c, i: i < c, lambda c, i: i + 1, jnp.asarray(lengths), jnp.zeros(64, int),
                            jnp.asarray(lengths), width=width)
    batches = np.sort(lengths)[::-1].reshape(-1, width)
    share = {"queue": lengths.sum() / int(queue.steps),
             "sorted lanes": lengths.sum() / (width * batches.max(axis=1).sum()),
             "all lanes": lengths.sum() / (64 * lengths.max())}
    best = lengths.sum() / (width * max(lengths.max(), lengths.sum() / width))
    assert share["queue"] >= best * 3 / 4
    assert share["queue"] > 1.2 * share["sorted lanes"] > 4 * share["all lanes"]


@pytest.mark.when_changed
def test_a_queued_loop_is_differentiated_and_batched_as_a_plain_one():
    """Values and derivatives, with constants for each lane, a shared constant, and an outer axis."""
    counts, rates = jnp.asarray(COUNTS[:6]), jnp.linspace(2.0, 3.0, 6)

    def f(shift):
        return jax.vmap(lambda r, c: logistic_map(r + shift, c, jnp.float32(0.3)))(rates, counts)

    def both(shift):
        return jax.jvp(f, (shift,), (jnp.float32(1.0),))

    plain = jax.vmap(both)(jnp.array([0.0, 0.1]))
    with loops.lane_queue(2):
        queue = jax.vmap(both)(jnp.array([0.0, 0.1]))
        alone = logistic_map(rates[1], counts[1], jnp.float32(0.3))
    for a, b in zip(plain, queue, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(alone, plain[0][0, 1], rtol=2e-4)


@pytest.mark.when_changed
def test_loops_that_end_by_themselves_and_prepared_ones():
    """Newton's square root until it converges, and sums whose terms are prepared in blocks."""
    numbers = jnp.array([2.0, 1e6, 1.0, 49.0, 1e-3])

    def root(a):
        return loops.while_loop(lambda s: jnp.abs(s[0] ** 2 - a) > 1e-5 * a,
                                lambda s: ((s[0] + a / s[0]) / 2, s[1] + 1), (a, 0), work=a)

    def prefetched_sum(total):
        return loops.fori_loop_with_prefetch(lambda i: i**2 - i, lambda term, s: s + term, 0, total=total, block=3)

    plain, alone = jax.vmap(root)(numbers), [root(a) for a in numbers]
    with loops.lane_queue(2):
        actual, sums = jax.vmap(root)(numbers), jax.vmap(prefetched_sum)(jnp.arange(9))
    np.testing.assert_allclose(actual[0], np.sqrt(numbers), rtol=1e-5)
    np.testing.assert_array_equal(actual[1], plain[1])
    np.testing.assert_array_equal(actual[1], [int(n) for _, n in alone])
    by_hand = np.cumsum([0] + [i**2 - i for i in range(8)])
    np.testing.assert_array_equal(sums, by_hand)
    np.testing.assert_array_equal(jax.vmap(prefetched_sum)(jnp.arange(9)), by_hand)


@pytest.mark.nightly
def test_line_searches_queue_as_well():
    """L-BFGS on quadratics with different condition numbers and budgets."""
    def solve(scale, budget):
        curvature = scale ** jnp.arange(3)
        return lbfgs(lambda w: jnp.sum(curvature * (w - 1) ** 2) / 2, lambda w: curvature * (w - 1), jnp.zeros(3),
                     steps=budget, tolerance=1e-4)

    scales, budgets = jnp.array([1.0, 3.0, 9.0, 2.0, 5.0]), jnp.array([9, 2, 30, 0, 9])
    plain = jax.vmap(solve)(scales, budgets)
    with loops.lane_queue(2):
        queue = jax.vmap(solve)(scales, budgets)
    for a, b in zip(plain, queue, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert len(set(np.asarray(plain[2]).tolist())) > 2
