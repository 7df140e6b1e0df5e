"""Centres from sums: they are those of the direct form, by steps that a plain loop repeats, with bounded influence."""

from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
from resolvent.math import centres, tree
from resolvent.math.centre_searches import MoreauSearch, SignSearch
from resolvent.math.penalties import L1, L2Norm, PerLayer, Scaled, SquaredL2

RNG = np.random.default_rng(3)
SIZES = {"a": (5,), "b": (3, 2)}
WEIGHTS = np.array([0.31, 1.0, 0.72, 0.2, 0.5, 0.94, 0.6])  # no sums of some of them are half of the total
COUNT = len(WEIGHTS)
PENALTIES = {
    "L2Norm": L2Norm(), "L1": L1(), "SquaredL2": SquaredL2(),
    "layers": PerLayer({"a": L1()}, default=Scaled(L2Norm(), 2.0)),
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def points(spread=1.0, dtype=np.float64):
    rng = np.random.default_rng(5)
    return {key: jnp.asarray(spread * rng.normal(size=(COUNT, *shape)) + 2, dtype) for key, shape in SIZES.items()}


@eqx.filter_jit
def replies(search, cloud, point):
    return jax.vmap(lambda p: search.reply(p, point))(cloud)


@eqx.filter_jit
def next_state(search, state, means):
    return search.step(state, means)


def iterates(search, cloud, start, steps, weights=WEIGHTS):
    """The centre after each step; the means of the replies are plain NumPy sums."""
    lam = np.asarray(weights) / np.sum(weights)
    state, reached = search.first(start), []
    for _ in range(steps):
        means = jax.tree.map(lambda r: jnp.asarray(np.tensordot(lam.astype(r.dtype), np.asarray(r), 1)),
                             replies(search, cloud, search.point(state)))
        state = next_state(search, state, means)
        reached.append(search.centre(state))
    return reached, search.residual(state)


def distance(a, b):
    return float(tree.norm(tree.sub(a, b)))


@pytest.mark.when_changed
@nightly.parametrize(("t", "name"), [*product([0.5, 3.0], PENALTIES)], others=nightly.WHEN_CHANGED)
def test_many_steps_give_the_direct_centre(name, t):
    cloud, start = points(), {key: jnp.zeros(shape) for key, shape in SIZES.items()}
    direct, _ = centres.moreau_centre(cloud, jnp.asarray(WEIGHTS), PENALTIES[name], t, tolerance=1e-15,
                                      max_iterations=20_000)
    reached, residual = iterates(MoreauSearch(PENALTIES[name], t), cloud, start, 400)
    assert distance(reached[-1], direct) < 1e-10
    assert residual < 1e-10
    assert distance(reached[7], direct) < 0.05 * distance(start, direct)


def test_the_step_of_the_euclidean_norm_is_weiszfelds():
    cloud = {"a": points()["a"]}
    start = np.zeros(5)
    reached, _ = iterates(MoreauSearch(L2Norm(), 1e-3), cloud, {"a": jnp.asarray(start)}, 6)
    for centre in reached:
        beta = WEIGHTS / np.linalg.norm(np.asarray(cloud["a"]) - start, axis=1)
        start = beta @ np.asarray(cloud["a"]) / beta.sum()
        np.testing.assert_allclose(centre["a"], start, rtol=1e-12)


@pytest.mark.when_changed
@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e4])
def test_votes_find_the_median_and_halve_its_error(spread):
    cloud = points(spread)
    start = {key: jnp.full(shape, 2 + 3 * spread) for key, shape in SIZES.items()}
    median = centres.coordinate_median(cloud, jnp.asarray(WEIGHTS))
    reached, _ = iterates(SignSearch(), cloud, start, 40)
    errors = [distance(centre, median) / spread for centre in reached]
    assert errors[15] < 1e-2
    assert errors[31] < 1e-6
    assert errors[39] < 1e-3 * errors[27]


def test_half_of_the_weight_on_either_side_is_a_median():
    cloud, search = jnp.array([[0.0], [1.0], [5.0], [6.0]]), SignSearch()
    reached, residual = iterates(search, cloud, jnp.array([3.0]), 5, np.ones(4))
    assert all(centre.tolist() == [3.0] for centre in reached)
    assert residual == 0


@pytest.mark.when_changed
@nightly.parametrize(("search", "size"), [
    (SignSearch(), 1e30), (MoreauSearch(L2Norm(), 0.5), 1e3), (MoreauSearch(L1(), 0.5), 1e3), (SignSearch(), 1e3),
    (MoreauSearch(L2Norm(), 0.5), 1e30), (MoreauSearch(L1(), 0.5), 1e30)], per_commit=2, others=nightly.WHEN_CHANGED)
def test_a_point_moves_every_step_by_its_weight_at_most(search, size):
    """Its part of the mean reply is at most its weight in norm (of the pull) or in each entry (of votes)."""
    cloud = points(dtype=np.float32)
    honest, _ = iterates(search, cloud, {key: jnp.zeros(shape, jnp.float32) for key, shape in SIZES.items()}, 30)
    false = jax.tree.map(lambda p: p.at[0].set(size), cloud)
    attacked, _ = iterates(search, false, {key: jnp.zeros(shape, jnp.float32) for key, shape in SIZES.items()}, 30)
    bound = max(float(jnp.max(jnp.abs(p - 2))) for p in jax.tree.leaves(cloud)) + 2
    for before, after in zip(honest, attacked, strict=True):
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(after))
        assert distance(before, after) < 4 * bound  # 7 % of the weight; the mean would move by 7 % of 1e30
    reply = search.reply(jax.tree.map(lambda p: p[0], false), honest[-1])
    largest = (max(float(jnp.max(jnp.abs(v))) for v in jax.tree.leaves(reply.signs)) if isinstance(search, SignSearch)
               else max(float(jnp.max(jnp.abs(v))) for v in jax.tree.leaves(reply)))
    assert largest <= 1 + 1e-6


def test_replies_of_zeros_count_as_none():
    cloud, start = points(), {key: jnp.zeros(shape) for key, shape in SIZES.items()}
    for search in (MoreauSearch(L2Norm(), 0.5), MoreauSearch(L1(), 0.5)):
        state = search.first(start)
        replies = jax.jit(jax.vmap(lambda p, search=search, state=state: search.reply(p, search.point(state))))(cloud)
        present = np.where(np.arange(COUNT) < 4, WEIGHTS, 0)

        def mean(weights, total, replies=replies):
            return jax.tree.map(lambda r: jnp.tensordot(jnp.asarray(weights / total), r, 1), replies)
        centre = jax.jit(lambda reply, search=search, state=state: search.centre(search.step(state, reply)))
        of_present, of_all = (centre(mean(present, total)) for total in (present.sum(), WEIGHTS.sum()))
        assert distance(of_present, of_all) < 1e-12
