"""Least squares with samples: minibatches estimate the gradient of the quadratic problem of the same samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import resolvent as rv
from resolvent.errors import InputError

SIZES = {"parties": 3, "samples": 8, "features": 4, "heterogeneity": 0.3}


@pytest.mark.when_changed
def test_minibatches_average_to_the_gradient_of_the_quadratic():
    with jax.enable_x64(True):
        quadratic, problem = (rv.problems.least_squares(**SIZES, minibatches=m) for m in (False, True))
        w, k = jnp.asarray(np.random.default_rng(0).normal(size=4)), jnp.array(1)
        oracle, other = problem.oracle(k), quadratic.oracle(k)
        np.testing.assert_allclose(oracle.value(w), other.value(w), rtol=1e-12)
        parts = [jnp.array([0, 3, 5, 0]), jnp.array([1, 2, 4, 0]), jnp.array([6, 7, 0, 0])]
        counts = (3, 3, 2)
        gradients = [oracle.batch_grad(w, part, jnp.arange(4) < n)[0] for part, n in zip(parts, counts, strict=True)]
        mean = sum(n / 8 * g for n, g in zip(counts, gradients, strict=True))
        np.testing.assert_allclose(mean, other.grad(w), rtol=1e-12)
        assert float(jnp.abs(gradients[0] - mean).max()) > 0.1
        shares = jnp.full(3, 1 / 3)
        np.testing.assert_allclose(problem.gap(w, shares), quadratic.gap(w, shares), rtol=1e-12)
        assert problem.sizes.tolist() == quadratic.sizes.tolist()


def test_minibatches_and_mixtures_exclude_each_other():
    with pytest.raises(InputError, match=r"minibatches need alpha=1, got alpha=0\.5"):
        rv.problems.least_squares(**SIZES, alpha=0.5, minibatches=True)
