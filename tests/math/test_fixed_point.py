"""Fixed-point sums are those of Python's integers and fractions."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nightly
from resolvent.errors import InputError
from resolvent.math.fixed_point import decode, encode, fraction_bits, fractions_of_limbs, is_in_range, total


def integers(words):
    """The words as Python's integers."""
    words = np.asarray(words)
    return [sum(int(word) << 32 * i for i, word in enumerate(row)) for row in words.reshape(-1, words.shape[-1])]


@pytest.mark.when_changed
@nightly.diagonal(("bits", "double"), [32, 64], [True, False])
@settings(max_examples=nightly.examples(60), deadline=None)
@given(st.lists(st.floats(-1000, 1000, width=32, exclude_min=True, exclude_max=True), min_size=3, max_size=3))
def test_a_sum_is_exact(bits, double, numbers):
    f = fraction_bits(3, 1000.0, bits)
    with jax.enable_x64(double):
        x = jnp.asarray(numbers, float)
        words = encode(x, [f], bits)
        rounded = [round(Fraction(float(value)) * 2**f) for value in x]  # half to even, as the encoding
        assert integers(words) == [q % 2**bits for q in rounded]
        sums = total(words)
        assert integers(sums) == [sum(rounded) % 2**bits]
        value = float(decode(sums, [f], jnp.zeros((), float)))
    assert abs(value - Fraction(sum(rounded), 2**f)) <= abs(Fraction(sum(rounded), 2**f)) * Fraction(2) ** -22
    exact = sum(Fraction(float(value)) for value in numbers)
    assert abs(Fraction(sum(rounded), 2**f) - exact) <= Fraction(3, 2**(f + 1))


@pytest.mark.parametrize("bits", [32, 64])
def test_words_wrap_as_integers_modulo_the_modulus(bits):
    rows = np.random.default_rng(0).integers(0, 2**32, (500, 4, bits // 32), dtype=np.uint32)
    rows[:, 0] = 2**32 - 1  # every half carries
    of_rows = np.array([integers(row) for row in rows], object)
    assert integers(total(jnp.asarray(rows))) == [n % 2**bits for n in of_rows.sum(axis=0)]


def test_as_many_fraction_bits_as_fit():
    f = fraction_bits(128, 2.0**20, 64)
    assert 128 * 2**20 * 2**f == 2**63
    with jax.enable_x64(True):  # the largest sum does not wrap
        x = jnp.full((128, 1), np.nextafter(2.0**20, 0))
        assert float(decode(total(encode(x, [f], 64)), [f], x)[0]) == pytest.approx(2.0**27, rel=1e-15)
    with pytest.raises(InputError, match="does not fit in 32 bits: use 64 bits"):
        fraction_bits(128, 2.0**30, 32)


@pytest.mark.parametrize(("value", "expected"), [(7.9, True), (-7.9, True), (8.0, False), (np.inf, False),
                                                 (np.nan, False)])
def test_the_range(value, expected):
    assert bool(is_in_range(jnp.array([0.0, value]), 8.0)) is expected


@pytest.mark.when_changed
@settings(max_examples=nightly.examples(60), deadline=None)
@given(st.lists(st.floats(-2.0**99, 2.0**99), min_size=3, max_size=3), st.integers(-80, 0))
def test_sums_of_several_limbs_are_exact_over_a_large_range(numbers, exponent):
    """Columns of any units: the sum is that of the fractions, rounded to a number of 64 bits."""
    f = fraction_bits(3, 2.0**100, 64, limbs=4)
    fractions = fractions_of_limbs(f, 3, 64, 4)
    assert f == 4 * 61 - 100
    assert fractions[0] == 61 - 100  # the first limb has a multiple of 2^39
    with jax.enable_x64(True):
        x = jnp.asarray(numbers) * jnp.array([1.0, 2.0**exponent, 2.0**exponent])
        value = float(decode(total(encode(x, fractions, 64)), fractions, x))
        exact = [Fraction(float(v)) for v in x]
    assert abs(value - sum(exact)) <= Fraction(2)**-50 * sum(map(abs, exact)) + Fraction(3, 2**(f + 1))
