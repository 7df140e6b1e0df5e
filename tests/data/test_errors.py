"""The helpers of error messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resolvent.errors import InputError, check_range, nearest, shorten


def test_nearest_suggests_a_similar_word_only():
    assert nearest("regresion", ["classification", "regression"]) == "; did you mean 'regression'?"
    assert nearest("zzz", ["classification", "regression"]) == ""
    assert nearest("roc_aucc", ["ROCAUC", "LogLoss"]) == "; did you mean 'ROCAUC'?"


def test_only_long_values_are_shortened():
    assert shorten([1, 2]) == "[1, 2]"
    assert shorten("x" * 200) == "x" * 200
    assert shorten("x" * 201) == "x" * 200 + "... (201 characters in all)"


class Owner:
    pass


@pytest.mark.parametrize(("interval", "inside", "outside"), [
    ("[0, inf)", 0, -1), ("(0, inf)", 1e-9, 0), ("[1, inf)", 1, 0.9), ("[0, 1]", 1, 1.1), ("(0, 1]", 1, 0),
    ("[0, 1)", 0, 1), ("(0, 1)", 0.5, 1), ("[0, 1/2)", 0.49, 0.5), ("[0, 1/4)", 0, 0.25)])
def test_a_number_outside_an_interval_is_refused_by_owner_and_name(interval, inside, outside):
    check_range(Owner(), interval, number=inside, several=[inside, inside], array=jnp.array([inside]))
    for wrong in (outside, float("nan"), [inside, outside], np.array([outside])):
        with pytest.raises(InputError, match=r"^Owner\(number=.*\) must lie in"):
            check_range(Owner(), interval, number=wrong)
    with pytest.raises(InputError, match=rf"^sines\(noise={outside}\) must lie in .*: give another number"):
        check_range("sines", interval, advice="give another number", noise=outside)


def test_values_that_are_not_known_numbers_pass():
    check_range(Owner(), "[0, inf)", schedule=lambda t: -1, absent=None)
    jax.jit(lambda x: check_range(Owner(), "[0, inf)", traced=x))(-1.0)
