"""Shapes of results: the traces of methods are cached."""

import equinox as eqx
import jax.numpy as jnp

from resolvent.xla.shapes import shapes_of

TRACED = []


class Line(eqx.Module):
    slope: jnp.ndarray

    def at(self, x):
        TRACED.append(x.shape)
        return self.slope * x


def test_a_method_is_traced_once_for_each_shape_whatever_the_numbers_are():
    for slope, n in ((1.0, 3), (2.0, 3), (2.0, 4)):
        assert shapes_of(Line(jnp.array(slope)).at, jnp.zeros(n)).shape == (n,)
    assert TRACED == [(3,), (4,)]
    assert shapes_of(lambda x: x[0], jnp.zeros((2, 5))).shape == (5,)
