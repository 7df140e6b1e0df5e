"""Encoded vectors as bytes: ceil(bits / 8) of them, and the same vector again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.math.packing import pack_integers, pack_wire, packed_size, unpack_integers, unpack_wire

CODECS = [rv.codecs.Identity(), rv.codecs.RandK(k=3), rv.codecs.TopK(k=3), rv.codecs.NaturalCompression(),
          rv.codecs.QSGD()]


@pytest.mark.when_changed
@nightly.parametrize("codec", CODECS[::-1], ids=repr, per_commit=3, others=nightly.WHEN_CHANGED)
def test_what_travels_has_the_reported_size(codec):
    for dtype, size in ((jnp.float32, 37), (jnp.bfloat16, 37)):
        x = jax.random.normal(jax.random.key(0), (size,)).astype(dtype)
        wire = codec.encode(x, jax.random.key(1))
        packed = pack_wire(wire)
        assert len(packed) == packed_size(wire) == -(-codec.bits(x) // 8)
        like = jax.eval_shape(lambda x: codec.encode(x, jax.random.key(1)), x)
        again = unpack_wire(packed, True, like)
        assert jax.tree.structure(again) == jax.tree.structure(wire)
        for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(wire), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b), strict=True)


def test_integers_of_several_blocks():
    values = np.random.default_rng(0).integers(-15, 16, 150_001)
    packed = pack_integers(values, -15, 15)
    assert len(packed) == -(-5 * len(values) // 8)
    np.testing.assert_array_equal(unpack_integers(packed, len(values), -15, 15), values)


def test_a_vector_that_is_not_finite_travels_as_zeros_and_decodes_to_nan():
    codec = rv.codecs.QSGD()
    wire = codec.encode(jnp.array([1.0, jnp.nan]), jax.random.key(0))
    packed = pack_wire(wire)
    assert not packed.any()
    assert np.isnan(unpack_wire(packed, False, wire).decoded()).all()


def test_codes_outside_the_range_are_refused():
    with pytest.raises(ValueError, match="above 15"):
        unpack_integers(np.array([0xFF], np.uint8), 1, -15, 15)
    with pytest.raises(ValueError, match="take 2 bytes, got 1"):
        unpack_integers(np.zeros(1, np.uint8), 2, -15, 15)
