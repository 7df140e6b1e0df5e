"""Noisy sums: sensitivity in integers, the kinds of keys, and the attack on the grid of floating-point noise."""

import math
import secrets

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
from resolvent.math.gaussian_noise import NoisySum
from resolvent.math.system_keys import is_system_key, system_key


def noisy_sum(key, **settings):
    return NoisySum.for_key(key, **{"length": 0.7, "multiplier": 1.0, "terms": 50, **settings})


def test_keys_that_are_derived_from_a_system_key_are_system_keys():
    key = system_key()
    for derived in (key, jax.random.fold_in(key, 3), jax.random.split(key)[1], jax.random.split(key, (2, 2))[0, 1]):
        assert is_system_key(derived)
    assert not is_system_key(jax.random.key(0))
    assert jax.random.key_data(key).nbytes * 8 == 128
    again = system_key(np.asarray(jax.random.key_data(key)).tobytes())
    assert float(jax.random.uniform(again)) == float(jax.random.uniform(key))
    assert float(jax.random.uniform(system_key())) != float(jax.random.uniform(key))


def test_each_half_of_a_system_key_changes_all_draws():
    data = np.asarray(jax.random.key_data(system_key()))
    draws = []
    for word in range(5):
        changed = data.copy()
        changed[word % 4] ^= word < 4
        draws.append(float(jax.random.uniform(jax.random.fold_in(system_key(changed.tobytes()), 1))))
    assert len(set(draws)) == 5


def test_draws_of_a_system_key_are_uniform():
    draws = np.asarray(jax.random.uniform(system_key(bytes(range(16))), (50_000,)))
    assert draws.mean() == pytest.approx(0.5, abs=0.01)
    assert np.abs(np.histogram(draws, 20, (0, 1))[0] - 2500).max() < 250


@pytest.mark.parametrize("double", [False, True])
def test_no_vector_changes_the_integer_sum_by_more_than_the_unit(double):
    """In exact integers, for vectors whose lengths floating-point sums underestimate, and for hostile numbers."""
    with jax.enable_x64(double):
        noisy, rng = noisy_sum(system_key()), np.random.default_rng(0)
        clip = jax.jit(noisy.clip)
        unit = float(noisy._unit)
        tiny = np.full(40_000, 2.4e-4)
        tiny[0] = 1.0  # a sum of squares in float32 that starts with 1 loses half of each of the others
        for x in (tiny, 1e30 * tiny, rng.normal(size=40_000), np.ones(40_000), np.eye(1, 40_000)[0],
                  np.full(40_000, 1e-42), np.full(40_000, np.inf), np.full(40_000, np.nan), np.zeros(40_000)):
            integers = np.asarray(clip(jnp.asarray(x)))
            assert integers.dtype == np.int32
            square = sum(int(i) ** 2 for i in integers)
            assert square <= math.floor(unit) ** 2
        assert math.sqrt(sum(int(i) ** 2 for i in np.asarray(clip(jnp.ones(40_000))))) > 0.998 * unit


def test_the_released_sum_is_on_the_grid_with_the_stated_noise():
    key = system_key()
    noisy = noisy_sum(key, multiplier=2.0)
    x = jnp.linspace(-1, 1, 20_000)
    released = np.asarray(noisy.release(noisy.clip(x), key)) - np.asarray(noisy.clip(x) * noisy._step)
    assert released.std() == pytest.approx(2.0 * 0.7, rel=0.03)
    assert abs(released.mean()) < 5 * 1.4 / math.sqrt(20_000)


def test_noisy_integers_of_several_can_be_summed():
    """With shares of the noise, their sum has the stated noise: mean and variance, to five standard errors."""
    for key in (system_key(), jax.random.key(0)):
        noisy = NoisySum.for_key(key, length=1.0, multiplier=2.0, terms=4, integers=True)
        keys = [key, key] if noisy.protects else [*jax.random.split(key)]
        parts = [noisy.noisy(noisy.zero(jnp.zeros(20_000)), k, share=0.5) for k in keys]
        assert all(part.dtype == jnp.int32 for part in parts)
        sigma, total = 2.0 * float(noisy._unit), np.asarray(sum(parts), np.float64)
        assert abs(total.mean()) < 5 * sigma / np.sqrt(20_000)
        assert total.std() == pytest.approx(sigma, rel=5 / np.sqrt(2 * 20_000))
        released = noisy.release(jnp.asarray(total, jnp.int32), key, share=0.0)
        np.testing.assert_array_equal(released, np.float32(total) * np.float32(noisy._step))


def test_each_release_has_new_noise_also_in_a_loop_and_with_the_same_key():
    """A compiler may merge or move pure functions of equal arguments: noise that it merged would cancel."""
    @jax.jit
    def releases(key):
        noisy = noisy_sum(key)
        zero = noisy.zero(jnp.zeros(4))
        looped = jax.lax.fori_loop(0, 3, lambda i, rows: rows.at[i].set(noisy.release(zero, key)), jnp.zeros((3, 4)))
        return jnp.concatenate([looped, noisy.release(zero, key)[None], noisy.release(zero, key)[None]])

    key = system_key()
    first, second = np.asarray(releases(key)), np.asarray(releases(key))
    assert len(np.unique([*first.ravel(), *second.ravel()])) > 35
    assert not (np.asarray(releases(jax.random.key(0))) - np.asarray(releases(jax.random.key(0)))).any()


def test_noise_that_protects_needs_a_system_key():
    with pytest.raises(TypeError, match="system key"):
        noisy_sum(system_key()).release(jnp.zeros(3, jnp.int32), jax.random.key(0))


def test_a_share_of_zero_adds_nothing():
    key = system_key()
    noisy = noisy_sum(key)
    assert not np.asarray(noisy.release(jnp.zeros(100, jnp.int32), key, share=0.0)).any()
    quarter = np.asarray(noisy.release(jnp.zeros(10_000, jnp.int32), key, share=0.25))
    assert quarter.std() == pytest.approx(0.35, rel=0.05)


def reachable_normals():
    """All values of ``jax.random.normal`` in float32, which come from 23 random bits."""
    bits = np.arange(2**23, dtype=np.uint32) | np.uint32(0x3F800000)
    floats = bits.view(np.float32) - np.float32(1)
    low = np.nextafter(np.float32(-1), np.float32(0))
    uniform = np.maximum(low, floats * (np.float32(1) - low) + low)
    return np.unique(np.asarray(jnp.sqrt(jnp.float32(2)) * jax.lax.erf_inv(jnp.asarray(uniform))))


def share_reachable(normals, released, total, scale):
    """The share of coordinates in which a sum can have been released: some normal number leads to the release."""
    guess = (released - total) / scale
    position = np.searchsorted(normals, guess)
    reachable = np.zeros(len(guess), bool)
    for shift in range(-4, 5):
        candidate = normals[np.clip(position + shift, 0, len(normals) - 1)]
        reachable |= (total + np.float32(scale) * candidate).astype(np.float32) == released
    return reachable.mean()


@nightly.parametrize("protects", [True, False], others=nightly.WHEN_CHANGED)
def test_the_grid_of_floating_point_noise_shows_who_is_in_a_sum(protects):
    """The attacker knows all other records and asks which of the two sums could have led to the release.

    With simulated noise the attack finds the record; on the integer grid both sums could have led to every release.
    """
    others, record = jax.random.normal(jax.random.key(5), (2, 4000)) / 60
    key = system_key() if protects else jax.random.key(1)
    noisy = noisy_sum(key, length=1.0)
    clipped = [noisy.clip(x) for x in (others, record)]
    released = noisy.release(clipped[0] + clipped[1], key)
    if not protects:
        normals = reachable_normals()
        with_record, without = (share_reachable(normals, np.asarray(released), np.asarray(total), 1.0)
                                for total in (clipped[0] + clipped[1], clipped[0]))
        assert with_record > 0.99
        assert without < 0.2
        return
    integers = np.rint(np.asarray(released) / np.asarray(noisy._step)).astype(np.int64)
    np.testing.assert_array_equal(np.asarray(integers * noisy._step, np.float32), np.asarray(released))
    sigma = float(noisy._unit)
    for total in (clipped[0] + clipped[1], clipped[0]):
        noise = integers - np.asarray(total)
        assert noise.std() == pytest.approx(sigma, rel=0.08)  # every integer has a positive probability
        assert (noise % 2).mean() == pytest.approx(0.5, abs=0.05)  # and no residue tells the sums apart


def test_the_random_words_are_those_of_the_operating_system(monkeypatch):
    asked, draw = [], secrets.token_bytes
    monkeypatch.setattr(secrets, "token_bytes", lambda n: asked.append(n) or draw(n))
    key = system_key()
    noisy_sum(key).release(jnp.zeros(10, jnp.int32), key).block_until_ready()
    assert sum(asked) >= 8 * 10
