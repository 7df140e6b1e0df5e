"""PPM-C: a string counted by hand, order 0 against counts, and a known chain of order 2."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.portfolio.markov import fit_ppmc
from resolvent.errors import InputError

LETTERS = "abcdr"


def number_of(context):
    """A context as a number whose lowest digit is the last letter."""
    number = 0
    for letter in context:
        number = number * len(LETTERS) + LETTERS.index(letter)
    return number


@pytest.mark.parametrize(("context", "expected"), [
    # c follows "ra" once: 1/2, escape 1/2. After "a", without c: b twice, d once: 2/5, 1/5, escape 2/5. Without a
    # context, a and r remain, 5 and 2 times, and no other letter: no escape.
    ("ra", {"c": 1 / 2, "b": 1 / 2 * 2 / 5, "d": 1 / 2 * 1 / 5, "a": 1 / 5 * 5 / 7, "r": 1 / 5 * 2 / 7}),
    # "cr" has no successor. a follows "r" twice: 2/3, escape 1/3. Without a context, b 2, c 1, d 1, r 2 times remain.
    ("cr", {"a": 2 / 3, "b": 1 / 3 * 2 / 6, "c": 1 / 3 * 1 / 6, "d": 1 / 3 * 1 / 6, "r": 1 / 3 * 2 / 6}),
])
def test_escape_and_exclusion_counted_by_hand(context, expected):
    symbols = jnp.array([LETTERS.index(letter) for letter in "abracadabra"])
    probabilities = fit_ppmc(symbols, alphabet=5, order=2).probabilities(number_of(context))
    np.testing.assert_allclose(probabilities, [expected[letter] for letter in LETTERS], rtol=1e-6)


def test_a_symbol_that_never_occurred_has_the_escape_of_the_empty_context():
    probabilities = fit_ppmc(jnp.array([0, 0, 0]), alphabet=3, order=0).probabilities(0)
    np.testing.assert_allclose(probabilities, [3 / 4, 1 / 8, 1 / 8], rtol=1e-6)


def test_order_0_is_the_share_of_each_symbol_after_the_first_ones():
    symbols = np.random.default_rng(0).integers(0, 4, 100)
    model = fit_ppmc(symbols, alphabet=4, order=0, first=30)
    np.testing.assert_allclose(model.probabilities(0), np.bincount(symbols[30:], minlength=4) / 70, rtol=1e-6)


def test_a_chain_of_order_2_is_recovered_and_drawn():
    """Its next symbol depends on the last two, so that a model of order 1 cannot represent it."""
    rng = np.random.default_rng(0)
    chance_of_1 = np.array([[0.9, 0.2], [0.3, 0.7]])  # after (the last but one, the last)
    symbols = [0, 1]
    for u in rng.random(20_000):
        symbols.append(int(u < chance_of_1[symbols[-2], symbols[-1]]))
    model = fit_ppmc(jnp.array(symbols), alphabet=2, order=3)
    for before, last in np.ndindex(2, 2):
        for earliest in (0, 1):
            fitted = model.probabilities(4 * earliest + 2 * before + last)
            assert fitted[1] == pytest.approx(chance_of_1[before, last], abs=0.03)
    drawn = np.asarray(model.sample(jax.random.key(0), 20_000, 0))
    for before, last in np.ndindex(2, 2):
        follows = drawn[2:][(drawn[:-2] == before) & (drawn[1:-1] == last)]
        assert follows.mean() == pytest.approx(chance_of_1[before, last], abs=0.03)


def test_too_many_contexts_are_refused():
    with pytest.raises(InputError, match=r"fit_ppmc\(alphabet=10, order=7\) would have more than 1,000,000"):
        fit_ppmc(jnp.array([0]), alphabet=10, order=7)
