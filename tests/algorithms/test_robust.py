"""Aggregators against brute force, their invariances, and how many bad replies they survive."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resolvent as rv
from resolvent.math import robust as maths

COUNT = 9
ABSENT = 3
TIGHT = {"tolerance": 1e-13, "max_iterations": 20_000}


def replies(points, weights=None):
    points = jax.tree.map(jnp.asarray, points)
    count = jax.tree.leaves(points)[0].shape[0]
    weights = jnp.ones(count, jax.tree.leaves(points)[0].dtype) if weights is None else jnp.asarray(weights)
    return rv.Replies(points, weights, jnp.arange(count), weights > 0, weights)


@eqx.filter_jit
def _call(aggregator, got, centre):
    return aggregator(got, centre)[0]


def aggregate(aggregator, points, weights=None, centre=None):
    return _call(aggregator, replies(points, weights), None if centre is None else jax.tree.map(jnp.asarray, centre))


def drawn(seed, count=COUNT):
    """A tree of points, weights of which one is zero, and a centre; the absent point is far away."""
    rng = np.random.default_rng(seed)
    points = {"a": rng.normal(size=(count, 2)), "b": {"c": rng.normal(size=(count, 1, 2))}}
    points = jax.tree.map(lambda p: np.where(np.arange(count).reshape((-1,) + (1,) * (p.ndim - 1)) == ABSENT,
                                             1e4 * p, p), points)
    weights = rng.integers(1, 4, count).astype(float)
    weights[ABSENT] = 0
    return points, weights, {"a": rng.normal(size=2), "b": {"c": rng.normal(size=(1, 2))}}


def flat(points, rows=True):
    lead = [np.asarray(leaf) for leaf in jax.tree.leaves(points)]
    return np.concatenate([leaf.reshape(len(leaf), -1) if rows else leaf.ravel() for leaf in lead], axis=-1)


# ---- brute force: lists and loops, absent points left out first


def by_hand_trimmed(x, w, numerator, denominator):
    """Every point as often as its weight says, so that whole numbers of values are cut off."""
    copies = [row for row, times in zip(x, w, strict=True) for _ in range(int(times) * denominator)]
    cut = numerator * int(sum(w))
    return np.array([np.mean(sorted(row[j] for row in copies)[cut:len(copies) - cut]) for j in range(x.shape[1])])


def by_hand_scores(x, among, bad):
    scores = {}
    for i in among:
        others = sorted(sum((a - b) ** 2 for a, b in zip(x[i], x[j], strict=True)) for j in among if j != i)
        scores[i] = sum(others[:max(len(among) - bad - 2, 2)])
    return scores


def by_hand_krum(x, w, bad, keep):
    there = [i for i in range(len(x)) if w[i] > 0]
    scores = by_hand_scores(x, there, bad)
    best = sorted(there, key=lambda i: scores[i])[:keep]
    return sum(w[i] * x[i] for i in best) / sum(w[i] for i in best)


def by_hand_bulyan(x, w, bad):
    left = [i for i in range(len(x)) if w[i] > 0]
    theta, chosen = len(left) - 2 * bad, []
    while len(chosen) < theta:
        scores = by_hand_scores(x, left, bad)
        best = min(left, key=lambda i: scores[i])
        left.remove(best)
        chosen.append(best)
    result = []
    for j in range(x.shape[1]):
        middle = np.median([x[i][j] for i in chosen])
        nearest = sorted(chosen, key=lambda i: abs(x[i][j] - middle))[:theta - 2 * bad]
        result.append(sum(w[i] * x[i][j] for i in nearest) / sum(w[i] for i in nearest))
    return np.array(result)


def by_hand_clipped(x, w, centre, radius):
    moved = np.zeros_like(centre)
    for row, weight in zip(x, w, strict=True):
        length = np.sqrt(sum((row - centre) ** 2))
        moved += weight * min(1, radius / length) * (row - centre)
    return centre + moved / sum(w)


def by_hand_norm_bound(x, w, centre):
    lengths = [np.linalg.norm(row - centre) for row, times in zip(x, w, strict=True) for _ in range(int(times))]
    return by_hand_clipped(x, w, centre, np.median(lengths))


def by_hand_centred_clipping(x, w, centre, radius, steps):
    for _ in range(steps):
        centre = by_hand_clipped(x, w, centre, radius)
    return centre


@pytest.mark.parametrize(("aggregator", "by_hand"), [
    (rv.aggregators.TrimmedMean(0.2), lambda x, w, c: by_hand_trimmed(x, w, 1, 5)),
    (rv.aggregators.TrimmedMean(0.375), lambda x, w, c: by_hand_trimmed(x, w, 3, 8)),
    (rv.aggregators.TrimmedMean(0.0), lambda x, w, c: w @ x / w.sum()),
    (rv.aggregators.Krum(0.2), lambda x, w, c: by_hand_krum(x, w, 2, 1)),
    (rv.aggregators.MultiKrum(0.2), lambda x, w, c: by_hand_krum(x, w, 2, 10)),
    (rv.aggregators.MultiKrum(0.2, keep=4), lambda x, w, c: by_hand_krum(x, w, 2, 4)),
    (rv.aggregators.Bulyan(0.17), lambda x, w, c: by_hand_bulyan(x, w, 2)),
    (rv.aggregators.Bulyan(0.1), lambda x, w, c: by_hand_bulyan(x, w, 1)),
    (rv.aggregators.CentredClipping(1.5), lambda x, w, c: by_hand_centred_clipping(x, w, c, 1.5, 3)),
    (rv.aggregators.NormBound(), by_hand_norm_bound),
    (rv.aggregators.NormBound(0.7), lambda x, w, c: by_hand_clipped(x, w, c, 0.7)),
], ids=lambda part: repr(part) if isinstance(part, rv.aggregators.Aggregator) else "by hand")
def test_by_loops_over_lists(aggregator, by_hand):
    """Thirteen points with weights 1 to 3, one of them absent."""
    for seed in range(4):
        points, weights, centre = drawn(seed, 13)
        found = flat(aggregate(aggregator, points, weights, centre), rows=False)
        expected = by_hand(flat(points), weights, flat(centre, rows=False))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


def test_squared_distances_do_not_cancel():
    """Points 1e-3 apart at 1e4, in float32: norms of 1e8 have no digits for a distance of 1e-6."""
    offsets = np.arange(4, dtype=np.float32)[:, None] * np.float32(2**-9)
    found = maths.squared_distances(jnp.asarray(np.float32(2**13) + offsets))
    np.testing.assert_array_equal(found, (offsets - offsets.T) ** 2)


def test_centred_clipping_ends_at_the_moreau_centre_of_the_l2_norm():
    points, weights, centre = drawn(5)
    points = jax.tree.map(lambda p: np.where(p > 100, 5, p), points)
    found = aggregate(rv.aggregators.CentredClipping(0.8, iterations=60), points, weights, centre)
    # One step contracts by a constant factor only: 60 of 60 go on from the last.
    for _ in range(20):
        found = aggregate(rv.aggregators.CentredClipping(0.8, iterations=60), points, weights, found)
    expected = aggregate(rv.aggregators.MoreauCentre(rv.penalties.L2Norm(), 0.8, **TIGHT), points, weights)
    np.testing.assert_allclose(flat(found, rows=False), flat(expected, rows=False), atol=1e-10)


def test_without_a_centre_clipping_starts_from_the_coordinate_median():
    points, weights, _ = drawn(6)
    median = aggregate(rv.aggregators.CoordinateMedian(), points, weights)
    for aggregator in (rv.aggregators.CentredClipping(0.5), rv.aggregators.NormBound()):
        jax.tree.map(np.testing.assert_array_equal, aggregate(aggregator, points, weights),
                     aggregate(aggregator, points, weights, median))


def test_the_server_hands_its_model_to_the_aggregator():
    """A norm bound of next to nothing leaves FedAvg's, Ditto's and Fed+'s shared model where it is."""
    still = rv.aggregators.NormBound(1e-9)
    got = replies({"w": np.full((4, 2), 5.0)})
    solver, here = rv.solvers.GD(0.1), {"w": jnp.array([1.0, 2.0])}
    for algorithm in (rv.robust(solver, still), rv.fedplus_pull(solver, still),
                      eqx.tree_at(lambda d: d.aggregator, rv.ditto(solver), still)):
        after, _ = algorithm.phases[0].server(here, got, jax.random.key(0))
        np.testing.assert_allclose(after["w"], here["w"], atol=1e-8)


# ---- invariances


ANY = {
    "mean": lambda s: rv.aggregators.Mean(),
    "coordinate median": lambda s: rv.aggregators.CoordinateMedian(),
    "geometric median": lambda s: rv.aggregators.GeometricMedian(1e-3 * s, **TIGHT),
    "L1": lambda s: rv.aggregators.MoreauCentre(rv.penalties.L1(), 0.3 * s, **TIGHT),
    "L2Norm": lambda s: rv.aggregators.MoreauCentre(rv.penalties.L2Norm(), 0.3 * s, **TIGHT),
    "SquaredL2": lambda s: rv.aggregators.MoreauCentre(rv.penalties.SquaredL2(), 0.3, **TIGHT),
    "trimmed mean": lambda s: rv.aggregators.TrimmedMean(0.2),
    "Krum": lambda s: rv.aggregators.Krum(0.2),
    "multi-Krum": lambda s: rv.aggregators.MultiKrum(0.2),
    "Bulyan": lambda s: rv.aggregators.Bulyan(0.15),
    "centred clipping": lambda s: rv.aggregators.CentredClipping(0.9 * s),
    "norm bound": lambda s: rv.aggregators.NormBound(),
    "given norm bound": lambda s: rv.aggregators.NormBound(0.9 * s),
}


@pytest.mark.parametrize("name", ANY)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.05, 20), sign=st.sampled_from([-1, 1]))
@settings(deadline=None, max_examples=12)
def test_order_origin_and_unit_do_not_matter(name, seed, scale, sign):
    """A(P x) = A(x), A(x + v) = A(x) + v, A(s x) = s A(x); lengths among the parameters have the points' unit."""
    points, weights, centre = drawn(seed)
    rng = np.random.default_rng(seed + 1)
    plain, scaled = ANY[name](jnp.array(1.0)), ANY[name](jnp.array(scale))
    expected = flat(aggregate(plain, points, weights, centre), rows=False)
    order = rng.permutation(COUNT)
    shuffled = aggregate(plain, jax.tree.map(lambda p: p[order], points), weights[order], centre)
    np.testing.assert_allclose(flat(shuffled, rows=False), expected, atol=1e-7)
    shift = jax.tree.map(lambda c: 3 * rng.normal(size=c.shape), centre)
    moved = aggregate(plain, jax.tree.map(np.add, points, shift), weights, jax.tree.map(np.add, centre, shift))
    np.testing.assert_allclose(flat(moved, rows=False), expected + flat(shift, rows=False), atol=1e-7)
    stretched = aggregate(scaled, *(jax.tree.map(lambda p: sign * scale * p, x) if i != 1 else x
                                    for i, x in enumerate((points, weights, centre))))
    np.testing.assert_allclose(flat(stretched, rows=False), sign * scale * expected, rtol=0, atol=1e-7 * scale)


@pytest.mark.parametrize("name", ANY)
def test_an_absent_point_is_as_none(name):
    points, weights, centre = drawn(7)
    there = np.arange(COUNT) != ABSENT
    without = aggregate(ANY[name](jnp.array(1.0)), jax.tree.map(lambda p: p[there], points), weights[there], centre)
    found = aggregate(ANY[name](jnp.array(1.0)), points, weights, centre)
    np.testing.assert_allclose(flat(found, rows=False), flat(without, rows=False), atol=1e-9)


# ---- breakdown


N = 20


def with_bad(count, value, dtype=np.float64):
    rng = np.random.default_rng(8)
    points = rng.normal(size=(N, 3))
    points[:count] = value * np.array([1, -1, 0.5]) + rng.normal(size=(count, 3))
    return rng.permutation(points).astype(dtype)


def reach(aggregator, count, value=1e6, dtype=np.float64):
    found = aggregate(aggregator, with_bad(count, value, dtype), centre=np.zeros(3, dtype))
    assert found.dtype == dtype
    return float(np.linalg.norm(np.asarray(found, np.float64)))


@pytest.mark.parametrize("name", ANY)
def test_bad_replies_up_to_the_stated_share_are_survived(name):
    """Good points within 3 or so of the origin; below one half the medians' bound is 1.8 times that."""
    aggregator = ANY[name](1.0)
    survived = 9 if aggregator.breakdown == 0.5 else round(aggregator.breakdown * N)
    assert survived == {"mean": 0, "SquaredL2": 0, "trimmed mean": 4, "Krum": 4, "multi-Krum": 4,
                        "Bulyan": 3}.get(name, 9)
    assert reach(aggregator, survived) < 10


@pytest.mark.parametrize("name", [n for n in ANY if n not in ("Krum", "Bulyan", "centred clipping",
                                                              "given norm bound")])
def test_above_the_stated_share_they_carry_the_aggregate_away(name):
    """Not Krum and Bulyan, which the next one more does not break yet, nor a given radius, which bounds every step."""
    aggregator = ANY[name](1.0)
    count = 11 if aggregator.breakdown == 0.5 else round(aggregator.breakdown * N) + 1
    assert reach(aggregator, count) > 1e4


@pytest.mark.parametrize(("aggregator", "most"), [(rv.aggregators.CentredClipping(0.9), 2.7), (rv.aggregators.NormBound(0.9), 0.9)])
def test_a_given_radius_bounds_the_step_whoever_is_bad(aggregator, most):
    assert most * 0.9 < reach(aggregator, N) <= most * (1 + 1e-12)


@pytest.mark.parametrize("aggregator", [rv.aggregators.TrimmedMean(0.2), rv.aggregators.Krum(0.2), rv.aggregators.MultiKrum(0.2), rv.aggregators.Bulyan(0.2),
                                        rv.aggregators.CentredClipping(1.0), rv.aggregators.NormBound()], ids=repr)
def test_not_a_trace_of_a_bad_reply_in_float32(aggregator):
    """Squares overflow and rounding leaves 1e-8 of a weight; neither may let 1e30 in."""
    assert reach(aggregator, 4, value=1e30, dtype=np.float32) < 10


def test_a_moreau_centre_breaks_down_as_its_penalty_pulls():
    def breakdown(penalty):
        return rv.aggregators.MoreauCentre(penalty, 0.1).breakdown

    layers = {"a": rv.penalties.L1(), "b": rv.penalties.Scaled(rv.penalties.L2Norm(), 2.0)}
    assert [breakdown(p) for p in (rv.penalties.L1(), rv.penalties.L2Norm(), rv.penalties.Scaled(rv.penalties.L1(), 3.0), rv.penalties.PerLayer(layers))] == [0.5] * 4
    assert [breakdown(p) for p in (rv.penalties.SquaredL2(), rv.penalties.Zero(), rv.penalties.OriginIndicator(), rv.penalties.Quadratic(np.eye(2)),
                                   rv.penalties.PerLayer(layers, default=rv.penalties.SquaredL2()))] == [0.0] * 5


# ---- what makes no sense, and what is too few


@pytest.mark.parametrize(("make", "message"), [
    (lambda: rv.aggregators.TrimmedMean(0.5), r"TrimmedMean\(share=0.5\) must lie in \[0, 1/2\)"),
    (lambda: rv.aggregators.MultiKrum(-0.1), r"MultiKrum\(share=-0.1\) must lie in \[0, 1/2\)"),
    (lambda: rv.aggregators.Bulyan(0.25), r"Bulyan\(share=0.25\) must lie in \[0, 1/4\): use MultiKrum, TrimmedMean"),
    (lambda: rv.aggregators.MultiKrum(0.2, keep=0), r"MultiKrum\(keep=0\) must average at least 1"),
    (lambda: rv.aggregators.CentredClipping(0.0), r"CentredClipping\(radius=0.0\) must lie in \(0, inf\)"),
    (lambda: rv.aggregators.CentredClipping(1.0, iterations=0), r"CentredClipping\(iterations=0\) must lie in \(0, inf\)"),
    (lambda: rv.aggregators.NormBound(-1.0), r"NormBound\(radius=-1.0\) must lie in \(0, inf\)"),
])
def test_nonsense_is_refused_when_built(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("aggregator", "parties", "message"), [
    (rv.aggregators.Bulyan(0.2), 10, r"Bulyan\(share=0.2\) assumes 2 bad of 10 replies and needs 4\*2 \+ 3 = 11: use a larger "
                         r"cohort, or a share below 0.2"),
    (rv.aggregators.Krum(0.4), 5, r"needs 2\*2 \+ 3 = 7: use a larger cohort, or a share below 0.4"),
    (rv.aggregators.Bulyan(0.2), 6, r"needs 4\*1 \+ 3 = 7: use a larger cohort, or TrimmedMean or a median"),
])
def test_a_cohort_too_small_is_refused_before_any_round(aggregator, parties, message):
    problem = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(2)] * parties), jnp.ones((parties, 2)))
    with pytest.raises(rv.InputError, match=message):
        rv.simulate(rv.robust(rv.solvers.GD(0.1), aggregator), problem, rounds=1, progress=False)


@pytest.mark.parametrize("aggregator", [rv.aggregators.Krum(0.2), rv.aggregators.MultiKrum(0.2, keep=3), rv.aggregators.Bulyan(0.15)], ids=repr)
def test_with_few_replies_left_the_result_is_among_them(aggregator):
    """n = 1 to 4 of a cohort of nine: no division by zero, nothing from the absent."""
    points, _, _ = drawn(9)
    for n in range(1, 5):
        weights = (np.arange(COUNT) < n).astype(float)
        there = flat(points)[:n]
        found = flat(aggregate(aggregator, points, weights), rows=False)
        assert (there.min(axis=0) - 1e-12 <= found).all()
        assert (found <= there.max(axis=0) + 1e-12).all()
