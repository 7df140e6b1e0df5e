"""Sums of residual blocks that are stored once, against the original program: values and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from xla_cpu_rewrites import operands, rewrite
from xla_cpu_rewrites.layouts import carry_layouts


def convolve(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME")


@pytest.mark.when_changed
def test_a_residual_network(monkeypatch):
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        filters = [jnp.asarray(0.2 * random.normal(size=(4, 4, 3, 3))) for _ in range(4)]
        x = jnp.asarray(random.normal(size=(2, 4, 8, 8)))

        def network(filters):
            h = x
            for first, second in zip(filters[::2], filters[1::2], strict=True):
                h = jax.nn.relu(h + convolve(jax.nn.relu(convolve(h, first)), second))
            return h

        forward = carry_layouts(jax.make_jaxpr(network)(filters))
        find = operands.store_shared_operands.find
        assert not list(find(forward.jaxpr))  # the sums are small
        monkeypatch.setattr(operands, "_MIN_BYTES", 0)
        # The first block's sum; not the activation within a block, which only a convolution reads.
        assert [aval.shape for (aval,) in find(forward.jaxpr)] == [(2, 8, 8, 4)]
        check_derivatives(lambda filters: jnp.sum(jnp.sin(network(filters))), filters)


def test_gradients_of_residual_layers(monkeypatch):
    monkeypatch.setattr(operands, "_MIN_BYTES", 0)
    with jax.enable_x64(True):
        random = np.random.default_rng(1)
        layers = [jnp.asarray(0.3 * random.normal(size=(6, 6))) for _ in range(3)]
        x = jnp.asarray(random.normal(size=(5, 6)))

        def loss(layers):
            h = x
            for weights in layers:
                h = h + jnp.tanh(h) @ weights
            return jnp.sum(jnp.sin(h))

        # The gradient by the last layer's input; that by the second layer's input is read by one product only.
        sums = list(operands.store_shared_operands.find(jax.make_jaxpr(jax.grad(loss))(layers).jaxpr))
        assert [aval.shape for (aval,) in sums] == [(5, 6)]
        check_derivatives(loss, layers)


def check_derivatives(loss, params):
    """Compare the gradient, its derivative along the parameters, and a batch of gradients with the original ones."""
    gradient = jax.grad(loss)

    def transformed(g):
        return g(params), jax.jvp(g, (params,), (params,))[1], jax.vmap(g)(jax.tree.map(
            lambda leaf: jnp.stack([leaf, -leaf]), params))

    plain, ours = jax.jit(lambda: [transformed(gradient), transformed(rewrite(gradient))])()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-10), plain, ours)
