"""Permutations that are evaluated entry by entry: every result is a permutation, and all are about equally likely."""

from contextlib import nullcontext
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

import nightly
from resolvent.xla.shuffle import Shuffle, folded_words
from xla_cpu_rewrites.small_call import allow_small_calls

ROOM = 300
draw = jax.jit(lambda seed, n: Shuffle.draw(jax.random.key(seed), n)(jnp.minimum(jnp.arange(ROOM), n - 1)))
many = jax.jit(jax.vmap(lambda seed, n: Shuffle.draw(jax.random.key(seed), n)(jnp.minimum(jnp.arange(8), n - 1)),
                        in_axes=(0, None)))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(1, ROOM))
def test_it_is_a_permutation(seed, n):
    assert sorted(np.asarray(draw(seed, n))[:n]) == list(range(n))


@pytest.mark.when_changed
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_orders_are_equally_likely(n):
    """A chi-square test over all n! orders; a uniform shuffle fails with probability 1e-6."""
    draws = 20_000
    actual = np.asarray(many(jnp.arange(draws), n))[:, :n]
    number = {p: i for i, p in enumerate(permutations(range(n)))}
    counts = np.bincount([number[tuple(int(v) for v in row)] for row in actual], minlength=len(number))
    expected = draws / len(number)
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < chi2.ppf(1 - 1e-6, len(number) - 1)


@pytest.mark.when_changed
def test_pairs_are_uniform_in_a_larger_one():
    """The positions of the first two of 16 entries: all 240 ordered pairs are equally likely."""
    draws = 48_000
    actual = np.asarray(many(jnp.arange(draws), 16))[:, :2]
    counts = np.bincount(actual[:, 0] * 16 + actual[:, 1], minlength=256).reshape(16, 16)
    assert np.trace(counts) == 0
    off = counts[~np.eye(16, dtype=bool)]
    expected = draws / 240
    assert ((off - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-6, 239)


@pytest.mark.when_changed
@pytest.mark.parametrize(("first", "last"), [(0, 0), (3, 9), (5, 16), (0, 11)])
def test_many_are_one_after_the_other(first, last):
    key, capacity = jax.random.key(4), 12
    draw_many = jax.jit(lambda *ends: Shuffle.draw_many(key, *ends, jnp.array(50), capacity=capacity))
    many = draw_many(first, last)
    for number in range(first, last + 1):
        single = Shuffle.draw(jax.random.fold_in(key, number), jnp.array(50))
        np.testing.assert_array_equal(many.pivots[number - first], single.pivots)
        np.testing.assert_array_equal(many.salts[number - first], single.salts)


@pytest.mark.when_changed
@nightly.parametrize(("count", "is_small"), [(8, True), (100, False), (1, True), (100, True), (1, False), (8, False)],
                     per_commit=2, others=nightly.WHEN_CHANGED)
def test_words_of_a_small_function_are_those_of_jax(count, is_small):
    def draw(key, numbers):
        with allow_small_calls() if is_small else nullcontext():
            return folded_words(key, numbers, 48)

    key, numbers = jax.random.key(3), 5 + jnp.arange(count, dtype=jnp.uint32)
    expected = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), (48,), jnp.uint32))(numbers)
    assert jax.jit(draw)(key, numbers).tolist() == expected.tolist()
    assert jax.vmap(draw, (None, 0))(key, numbers[None]).tolist() == expected[None].tolist()


@nightly.parametrize("generator", ["rbg", "unsafe_rbg"], others=nightly.WHEN_CHANGED)
def test_words_of_other_generators_are_those_of_jax(generator):
    key, numbers = jax.random.key(3, impl=generator), jnp.arange(4, dtype=jnp.uint32)
    expected = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), (8,), jnp.uint32))(numbers)
    assert folded_words(key, numbers, 8).tolist() == expected.tolist()
