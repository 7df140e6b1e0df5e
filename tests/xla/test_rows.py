"""Rows by numbers that are not negative: the same rows as those of ``x[i]``, with fewer operations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resolvent.xla.rows import entry, rows

TABLE = {"a": jnp.arange(24.0).reshape(4, 3, 2), "b": jnp.arange(4)}


@pytest.mark.parametrize("index", [
    2, np.int64(1), slice(1, 3), (1, 2), np.array([0, 3]), jnp.array(3), jnp.array([2, 0, 2]),
    jnp.array([[1], [3]], jnp.uint8), jnp.array([True, False, True, True])])
def test_rows_are_those_of_an_index(index):
    tree = {"a": TABLE["a"]} if isinstance(index, tuple) else TABLE
    for result, expected in zip(jax.tree.leaves(rows(tree, index)),
                                [leaf[index] for leaf in jax.tree.leaves(tree)], strict=True):
        np.testing.assert_array_equal(result, expected)


def test_rows_in_programs():
    index = jnp.array([3, 1])
    batched = jax.jit(jax.vmap(lambda i: rows(TABLE, i)))(index)
    np.testing.assert_array_equal(batched["a"], TABLE["a"][index])
    gradient = jax.grad(lambda a: (rows(a, index[0]) ** 2).sum())(TABLE["a"])
    np.testing.assert_array_equal(gradient, jnp.zeros((4, 3, 2)).at[3].set(2 * TABLE["a"][3]))
    keys = jax.random.split(jax.random.key(0), 3)
    assert rows(keys, jnp.array(2)) == keys[2]


@pytest.mark.parametrize("index", [jnp.array(1), jnp.array([1, 2])])
def test_rows_do_not_look_for_negative_numbers(index):
    operations = [e.primitive.name for e in jax.make_jaxpr(lambda i: rows(TABLE["a"], i))(index).eqns]
    assert "lt" not in operations
    assert "select_n" not in operations


@pytest.mark.parametrize("index", [(jnp.array(2),), (1, jnp.array(2)), (jnp.array(3), jnp.array(1), 1)])
def test_entries(index):
    np.testing.assert_array_equal(entry(TABLE["a"], *index), TABLE["a"][index])
    with jax.enable_x64(True):
        mixed = [np.int64(i) if n else jnp.asarray(i, jnp.int32) for n, i in enumerate(index)]
        np.testing.assert_array_equal(entry(TABLE["a"], *mixed), TABLE["a"][index])
