"""Codecs: exact bits, unbiasedness by enumeration, variance bounds that hold and are attained."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import nightly
import resolvent as rv
from resolvent.math import codecs

KEY = jax.random.key(0)
GRID = (jnp.arange(1024) + 0.5) / 1024  # every outcome of a 10-bit coin, each once


@pytest.fixture
def enumerated(monkeypatch):
    """pack(x, u) rounds by u, where it would by a number drawn from the key."""
    monkeypatch.setattr(codecs, "_uniform", lambda u, shape, dtype: jnp.broadcast_to(u, shape).astype(dtype))


def all_outcomes(codec, x):
    """[1024, d]: what is decoded for every u."""
    return np.asarray(jax.vmap(lambda u: codec.unpack(codec.pack(x, u), x))(GRID), np.float64)


@pytest.mark.parametrize(("codec", "single", "double"), [
    (rv.codecs.Identity(), 10 * 32, 10 * 64),
    (rv.codecs.RandK(k=3), 3 * 32 + 32, 3 * 64 + 32),
    (rv.codecs.TopK(share=0.01), 32 + 4, 64 + 4),
    (rv.codecs.NaturalCompression(), 10 * 9, 10 * 12),
    (rv.codecs.QSGD(levels=4), 32 + 10 * 4, 64 + 10 * 4),
    (rv.codecs.RandK(share=0.3), 3 * 32 + 32, 3 * 64 + 32),
    (rv.codecs.RandK(k=99), 10 * 32 + 32, 10 * 64 + 32),
    (rv.codecs.TopK(k=3), 3 * (32 + 4), 3 * (64 + 4)),
    (rv.codecs.QSGD(levels=1), 32 + 10 * 2, 64 + 10 * 2),
    (rv.codecs.QSGD(levels=3), 32 + 10 * 3, 64 + 10 * 3),
], ids=str)
def test_bits_are_exact(codec, single, double):
    with jax.enable_x64(True):
        for dtype, expected in ((jnp.float32, single), (jnp.float64, double)):
            x = {"a": jnp.linspace(-3, 2, 6, dtype=dtype).reshape(2, 3),
                 "b": [jnp.ones(3, dtype), jnp.zeros((), dtype)]}
            wire = jax.eval_shape(codec.encode, x, KEY)
            assert wire.bits == codec.bits(x) == expected
            back = jax.eval_shape(codec.decode, wire)
            assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), back) == jax.tree.map(
                lambda leaf: (leaf.shape, leaf.dtype), x)
            assert codecs.wire_bits([wire, x, {"n": wire}]) == 2 * expected + codecs.wire_bits(x)


@pytest.mark.when_changed
def test_what_is_packed_fits_the_bits():
    """The arrays of a wire hold no more than the packed code has room for."""
    with jax.enable_x64(True):
        for dtype, bits in ((jnp.float32, 9), (jnp.float64, 12), (jnp.float16, 6)):
            extremes = jnp.array([np.inf, -np.inf, np.nan, -0.0, 1e-7, -3.0, jnp.finfo(dtype).max], dtype)
            assert int(jnp.max(rv.codecs.NaturalCompression().pack(extremes, KEY))) < 2**bits
    levels = rv.codecs.QSGD(levels=4).pack(jnp.array([-1.0, 0.0, 0.0]), KEY)[1]
    assert levels.tolist() == [-4, 0, 0]
    places, _ = rv.codecs.TopK(k=2).pack(jnp.arange(16.0), KEY)
    assert sorted(places.tolist()) == [14, 15]


def test_randk_over_all_subsets():
    """Every subset comes, all alike; over all of them the mean is x and the variance (d/k - 1) |x|^2."""
    with jax.enable_x64(True):
        d, k, draws = 5, 2, 3000
        x, codec = jnp.array([1.0, -2.0, 0.5, 3.0, -0.25]), rv.codecs.RandK(k=k)
        keys = jax.random.split(KEY, draws)
        got = np.asarray(jax.jit(jax.vmap(lambda key: codec.decode(codec.encode(x, key))))(keys))
        subsets = {tuple(np.flatnonzero(row)): row for row in got}
        assert sorted(subsets) == list(itertools.combinations(range(d), k))
        for subset, row in subsets.items():
            np.testing.assert_array_equal(row[list(subset)], d / k * np.asarray(x)[list(subset)])
            same = got[[tuple(np.flatnonzero(other)) == subset for other in got]]
            np.testing.assert_array_equal(same, np.broadcast_to(row, same.shape))
        each = np.stack(list(subsets.values()))
        np.testing.assert_allclose(each.mean(axis=0), x, atol=1e-15)
        variance = np.mean(np.sum((each - np.asarray(x))**2, axis=1))
        np.testing.assert_allclose(variance, codec.omega(d) * np.sum(np.asarray(x)**2), rtol=1e-14)
        counts = [sum(tuple(np.flatnonzero(row)) == s for row in got) for s in subsets]
        assert scipy.stats.chisquare(counts).pvalue > 1e-4


def test_topk_keeps_the_largest_and_contracts():
    rng = np.random.default_rng(0)
    codec = rv.codecs.TopK(k=3)
    for _ in range(5):
        x = rng.normal(size=8).astype(np.float32)
        got = np.asarray(codec.decode(codec.encode(jnp.asarray(x), KEY)))
        selected = np.argsort(-np.abs(x))[:3]
        np.testing.assert_array_equal(np.flatnonzero(got), np.sort(selected))
        np.testing.assert_array_equal(got[selected], x[selected])
        assert np.sum((got - x)**2) <= codec.omega(8) * np.sum(x**2)
    flat = codec.decode(codec.encode(jnp.ones(8), KEY))
    assert np.sum((np.asarray(flat) - 1)**2) == codec.omega(8) * 8


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32])
def test_natural_compression_by_its_two_point_law(dtype, enumerated):
    """For numbers of ten mantissa bits every coin is enumerated: the mean is x exactly, the variance (x-a)(b-x)."""
    mantissas = 1 + np.arange(1024) / 1024
    x = np.concatenate([mantissas, -mantissas * 2.0**-9, mantissas * 2.0**7, [0.0]])
    outcomes = all_outcomes(rv.codecs.NaturalCompression(), jnp.asarray(x, dtype))
    below = np.sign(x) * 2.0**np.floor(np.log2(np.abs(x), where=x != 0, out=np.zeros_like(x)))
    for row in outcomes[::341]:
        assert np.all((row == below) | (row == 2 * below))
    np.testing.assert_array_equal(outcomes.mean(axis=0), x)
    variance = np.mean((outcomes - x)**2, axis=0)
    np.testing.assert_allclose(variance, (x - below) * (2 * below - x), rtol=1e-12)
    relative = variance[:-1] / x[:-1]**2
    assert 0.125 - 1e-5 < relative.max() <= rv.codecs.NaturalCompression().omega(len(x)) == 0.125


def test_natural_compression_at_the_ends_of_the_range(enumerated):
    smallest, largest = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    outcomes = all_outcomes(rv.codecs.NaturalCompression(), jnp.array([smallest, largest, np.inf, np.nan]))
    assert np.all(outcomes[:, 0] == smallest)
    assert np.all(outcomes[:, 1] == 2.0**127)  # the next power does not exist
    assert not np.isfinite(outcomes[:, 2:]).any()


@nightly.diagonal(("size", "levels"), [1, 7, 60], [1, 4, 15])
def test_qsgd_by_enumeration(levels, size, enumerated):
    """The mean over 1024 coins is x up to one coin's weight, and the variance within the lemma's bound."""
    codec = rv.codecs.QSGD(levels=levels)
    x = np.random.default_rng(size).normal(size=size).astype(np.float32)
    outcomes, unit = all_outcomes(codec, jnp.asarray(x)), np.linalg.norm(x) / levels
    np.testing.assert_allclose(outcomes / unit, np.round(outcomes / unit), atol=1e-5)
    np.testing.assert_allclose(outcomes.mean(axis=0), x, atol=unit / 1023)
    variance = np.mean(np.sum((outcomes - x)**2, axis=1))
    exact = np.sum((np.abs(x) / unit % 1) * (1 - np.abs(x) / unit % 1)) * unit**2
    np.testing.assert_allclose(variance, exact, atol=2e-3 * size * unit**2)
    assert exact <= codec.omega(size) * np.sum(x**2) + 1e-6


def test_the_coins_are_uniform_and_the_same_in_both_precisions():
    with jax.enable_x64(True):
        single, double = (np.asarray(codecs._uniform(KEY, (20000,), d), np.float64) for d in (jnp.float32, jnp.float64))
        assert scipy.stats.kstest(double, "uniform").pvalue > 1e-3
        assert (single >= 0).all()
        assert (double < 1).all()
        np.testing.assert_allclose(single, double, atol=2.0**-24)


def test_steps_of_memories():
    assert rv.codecs.RandK(k=2).step(10) == pytest.approx(0.2)
    assert rv.codecs.TopK(k=2).step(10) == 1.0
    assert rv.codecs.NaturalCompression().step(10) == pytest.approx(8 / 9)
    assert rv.codecs.Identity().step(10) == 1.0


def test_refusals():
    with pytest.raises(ValueError, match=r"RandK\(share=0\)"):
        rv.codecs.RandK(share=0)
    with pytest.raises(ValueError, match=r"TopK\(k=0\)"):
        rv.codecs.TopK(k=0)
    with pytest.raises(ValueError, match=r"QSGD\(levels=0\)"):
        rv.codecs.QSGD(levels=0)
    with pytest.raises(TypeError, match="RandK needs leaves of floating numbers, got int32"):
        rv.codecs.RandK().encode({"a": jnp.arange(3, dtype=jnp.int32)}, KEY)
