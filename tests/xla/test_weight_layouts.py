"""Products with other orders of their operands, against the original ones: values and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.xla.programs import programs
from resolvent.xla.rewrites import operands, rewrite
from resolvent.xla.rewrites.weights import orient_products

B, T, W, HEADS = 2, 6, 4, 2


def block(params, x):
    """Attention and a hidden layer for one sequence [T, W], each layer written for one token."""
    def norm(v):
        return (v - jnp.mean(v)) / jnp.sqrt(jnp.var(v) + 1e-5)

    h = jax.vmap(norm)(x)
    query, key, value = (jax.vmap(lambda v, w=w: w @ v)(h).reshape(T, HEADS, -1) for w in params["attention"])
    weights = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", query, key))
    x = x + jnp.einsum("hqk,khd->qhd", weights, value).reshape(T, W)
    return x + jax.vmap(lambda v: params["last"] @ jax.nn.gelu(params["first"] @ norm(v) + params["bias"]))(x)


def first_factors(jaxpr, weights):
    """The weights that are the first factor of a product."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield from {equation.invars[0]} & set(weights)
        for closed in programs(equation):
            yield from first_factors(closed.jaxpr, [inner for inner, v in zip(
                closed.jaxpr.invars, equation.invars, strict=False) if v in weights])


def test_a_transformer_block(monkeypatch):
    monkeypatch.setattr(operands, "_MIN_BYTES", 0)
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        shapes = {"attention": (3, W, W), "first": (2 * W, W), "bias": (2 * W,), "last": (W, 2 * W)}
        params = {name: jnp.asarray(random.normal(size=shape)) for name, shape in shapes.items()}
        params["attention"] = list(params["attention"])
        x = jnp.asarray(random.normal(size=(B, T, W)))

        def loss(params):
            return jnp.mean(jnp.sin(jax.vmap(lambda v: block(params, v))(x).mean(1)))

        gradient = jax.grad(loss)
        program = jax.make_jaxpr(gradient)(params)
        assert len(list(first_factors(program.jaxpr, program.jaxpr.invars))) == 5
        oriented = orient_products(program)
        assert not list(first_factors(oriented.jaxpr, oriented.jaxpr.invars))
        # The gradients by the first layer, the last layer and the three weights of attention; the gradient by the keys.
        products = list(operands.prepare_operands.find(oriented.jaxpr))
        assert len(products) == 6
        assert not list(operands.prepare_operands.find(operands.prepare_operands(oriented).jaxpr))

        def transformed(g):
            return g(params), jax.jvp(g, (params,), (params,))[1], jax.vmap(g)(jax.tree.map(
                lambda leaf: jnp.stack([leaf, -leaf]), params))

        plain, ours = jax.jit(lambda: [transformed(gradient), transformed(rewrite(gradient))])()
        jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-10), plain, ours)


def test_products_of_fewer_rows_than_columns_stay():
    closed = jax.make_jaxpr(lambda w: jax.vmap(lambda v: w @ v)(jnp.ones((3, 4))))(jnp.ones((8, 4)))
    assert orient_products(closed) is closed
