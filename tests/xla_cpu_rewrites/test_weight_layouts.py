"""Products with other orders of their operands, against the original ones: values and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xla_cpu_rewrites import operands, rewrite, scales
from xla_cpu_rewrites.programs import programs
from xla_cpu_rewrites.weights import orient_products

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


@pytest.mark.when_changed
def test_a_transformer_block(monkeypatch):
    monkeypatch.setattr(operands, "_MIN_BYTES", 0)
    monkeypatch.setattr(scales, "_MIN_SIZE", 0)
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


SCALED = [  # the products, the scale's shape in the factor [2, 7, 9]
    ("bij,bjd->bid", (2, 7, 1)), ("bid,bij->bjd", (2, 1, 9)), ("bij,bjd->bid", (2, 1, 9)), ("jdb,bij->bid", (2, 1, 9)),
    ("bij,jdb->bdi", (2, 7, 1)), ("bij,bjd->bid", ()), ("bij,id->bjd", (1, 7, 1)), ("bij,ijd->bd", (2, 1, 1))]


@pytest.mark.parametrize(("numbers", "shape"), SCALED)
@pytest.mark.parametrize("scale", [jnp.multiply, jnp.divide])
def test_scales_of_products(numbers, shape, scale, monkeypatch):
    monkeypatch.setattr(scales, "_MIN_SIZE", 0)
    sizes = {"b": 2, "i": 7, "j": 9, "d": 3}
    names = numbers.split("->")[0].split(",")
    number = names.index("bij")

    def f(c, *factors):
        factors = list(factors)
        factors[number] = scale(factors[number], c)
        return jnp.einsum(numbers, *factors)

    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        arrays = [jnp.asarray(random.normal(size=[sizes[a] for a in name])) for name in names]
        c = jnp.asarray(random.uniform(1, 2, shape))

        def results(*args):
            gradient = jax.grad(lambda *args: jnp.sum(jnp.sin(f(*args))), (0, 1, 2))
            return f(*args), gradient(*args), jax.vmap(f)(*(jnp.stack([a, -a]) for a in args))

        assert next(scales.scale_small_arrays.find(jax.make_jaxpr(f)(c, *arrays).jaxpr), None)
        plain, ours = jax.jit(lambda *args: (results(*args), rewrite(results)(*args)))(c, *arrays)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-10), plain, ours)


def test_a_product_larger_than_its_factors_is_not_scaled(monkeypatch):
    monkeypatch.setattr(scales, "_MIN_SIZE", 0)
    closed = jax.make_jaxpr(lambda q, k: jnp.einsum("bqd,bkd->bqk", q, k) / 4)(jnp.ones((2, 9, 3)), jnp.ones((2, 8, 3)))
    *_, last = scales.scale_small_arrays(closed).jaxpr.eqns
    assert last.primitive.name == "dot_general"


@pytest.mark.parametrize("numbers", ["bqk,bqd->bkd", "bqd,bqk->bdk", "qbd,bqk->bdk", "bqk,dqb->bkd", "qk,qd->kd",
                                     "qd,qk->kd", "bqk,bqd->kd", "bqd,bqk->dk"])
@pytest.mark.parametrize("cache", [0, operands._CACHE_BYTES])
def test_the_smaller_factor_is_transposed(numbers, cache, monkeypatch):
    monkeypatch.setattr(operands, "_MIN_BYTES", 0)
    monkeypatch.setattr(operands, "_CACHE_BYTES", cache)
    monkeypatch.setattr(operands, "_MIN_RATIO", 2)
    sizes, names = {"b": 2, "q": 7, "k": 9, "d": 3}, numbers.split("->")[0].split(",")
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        factors = [jnp.asarray(random.normal(size=[sizes[a] for a in name])) for name in names]

        def f(*factors):
            return jnp.einsum(numbers, *factors)

        closed = jax.make_jaxpr(f)(*factors)
        changed = operands.prepare_operands(closed)
        assert changed is not closed
        assert operands.prepare_operands(changed) is changed

        def results(f):
            gradient = jax.grad(lambda *args: jnp.sum(jnp.sin(f(*args))), (0, 1))
            return f(*factors), gradient(*factors), jax.vmap(f)(*(jnp.stack([a, -a]) for a in factors))

        plain, ours = jax.jit(lambda: (results(f), results(rewrite(f))))()
        jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-10), plain, ours)
