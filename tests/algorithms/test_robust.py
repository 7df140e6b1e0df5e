"""Aggregators: agreement with brute force, scales, and breakdown points; ``tests/testing`` checks their contract."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from algorithms.contract_rows import ROWS, SAME
from docs.outside_modules import load
from resolvent.algorithms import presets
from resolvent.algorithms.aggregators.aggregator import aggregators_of, with_limited_shares
from resolvent.algorithms.traits import is_robust
from resolvent.errors import BreakdownWarning
from resolvent.math.robust import distances, limited_weights
from resolvent.testing import check_half_precision

SHARES = load("benchmarks/shares.py")
PARTIES = 9
ABSENT = 3
CONVERGED = {"tolerance": 1e-13, "max_iterations": 20_000}


def make_replies(points, weights=None):
    points = jax.tree.map(jnp.asarray, points)
    count = jax.tree.leaves(points)[0].shape[0]
    weights = jnp.ones(count, jax.tree.leaves(points)[0].dtype) if weights is None else jnp.asarray(weights)
    return rv.Replies(points, weights, jnp.arange(count), weights > 0, weights)


@eqx.filter_jit
def call(aggregator, replies, centre):
    return aggregator(replies, centre)[0]


def aggregate(aggregator, points, weights=None, centre=None):
    centre = None if centre is None else jax.tree.map(jnp.asarray, centre)
    return call(aggregator, make_replies(points, weights), centre)


def draw(seed, count=PARTIES):
    """A tree of points, weights, and a centre. The weight of point ABSENT is zero, and that point is far away."""
    rng = np.random.default_rng(seed)
    points = {"a": rng.normal(size=(count, 2)), "b": {"c": rng.normal(size=(count, 1, 2))}}
    for leaf in jax.tree.leaves(points):
        leaf[ABSENT] *= 1e4
    weights = rng.integers(1, 4, count).astype(float)
    weights[ABSENT] = 0
    return points, weights, {"a": rng.normal(size=2), "b": {"c": rng.normal(size=(1, 2))}}


def flatten(point):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(point)])


def flatten_rows(points):
    return np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(points)], axis=-1)


# Brute force: lists and loops over the points that are present.


def brute_force_trimmed(x, w, numerator, denominator):
    """Repeat each point according to its weight, so that a whole number of values is removed at each end."""
    copies = [row for row, times in zip(x, w, strict=True) for _ in range(int(times) * denominator)]
    cut = numerator * int(sum(w))
    return np.array([np.mean(sorted(row[j] for row in copies)[cut:len(copies) - cut]) for j in range(x.shape[1])])


def brute_force_scores(x, candidates, malicious):
    scores = {}
    for i in candidates:
        distances = sorted(sum((a - b) ** 2 for a, b in zip(x[i], x[j], strict=True)) for j in candidates if j != i)
        scores[i] = sum(distances[:max(len(candidates) - malicious - 2, 2)])
    return scores


def brute_force_krum(x, w, malicious, keep):
    present = [i for i in range(len(x)) if w[i] > 0]
    scores = brute_force_scores(x, present, malicious)
    best = sorted(present, key=lambda i: scores[i])[:keep]
    return sum(w[i] * x[i] for i in best) / sum(w[i] for i in best)


def brute_force_bulyan(x, w, malicious):
    candidates = [i for i in range(len(x)) if w[i] > 0]
    theta, selected = len(candidates) - 2 * malicious, []
    while len(selected) < theta:
        scores = brute_force_scores(x, candidates, malicious)
        best = min(candidates, key=lambda i: scores[i])
        candidates.remove(best)
        selected.append(best)
    result = []
    for j in range(x.shape[1]):
        median = np.median([x[i][j] for i in selected])
        nearest = sorted(selected, key=lambda i: abs(x[i][j] - median))[:theta - 2 * malicious]
        result.append(sum(w[i] * x[i][j] for i in nearest) / sum(w[i] for i in nearest))
    return np.array(result)


def brute_force_clipped(x, w, centre, radius):
    update = np.zeros_like(centre)
    for row, weight in zip(x, w, strict=True):
        length = np.sqrt(sum((row - centre) ** 2))
        update += weight * min(1, radius / length) * (row - centre)
    return centre + update / sum(w)


def brute_force_norm_bound(x, w, centre):
    lengths = [np.linalg.norm(row - centre) for row, times in zip(x, w, strict=True) for _ in range(int(times))]
    return brute_force_clipped(x, w, centre, np.median(lengths))


def brute_force_centred_clipping(x, w, centre, radius, steps):
    for _ in range(steps):
        centre = brute_force_clipped(x, w, centre, radius)
    return centre


@pytest.mark.parametrize(("aggregator", "brute_force"), [
    (rv.aggregators.TrimmedMean(0.2), lambda x, w, c: brute_force_trimmed(x, w, 1, 5)),
    (rv.aggregators.TrimmedMean(0.375), lambda x, w, c: brute_force_trimmed(x, w, 3, 8)),
    (rv.aggregators.TrimmedMean(0.0), lambda x, w, c: w @ x / w.sum()),
    (rv.aggregators.Krum(0.2), lambda x, w, c: brute_force_krum(x, w, 2, 1)),
    (rv.aggregators.MultiKrum(0.2), lambda x, w, c: brute_force_krum(x, w, 2, 10)),
    (rv.aggregators.MultiKrum(0.2, keep=4), lambda x, w, c: brute_force_krum(x, w, 2, 4)),
    (rv.aggregators.Bulyan(0.17), lambda x, w, c: brute_force_bulyan(x, w, 2)),
    (rv.aggregators.Bulyan(0.1), lambda x, w, c: brute_force_bulyan(x, w, 1)),
    (rv.aggregators.CentredClipping(1.5), lambda x, w, c: brute_force_centred_clipping(x, w, c, 1.5, 3)),
    (rv.aggregators.NormBound(), brute_force_norm_bound),
    (rv.aggregators.NormBound(0.7), lambda x, w, c: brute_force_clipped(x, w, c, 0.7)),
], ids=lambda part: repr(part) if isinstance(part, rv.aggregators.Aggregator) else "")
def test_agrees_with_brute_force(aggregator, brute_force):
    """Thirteen points with weights 1 to 3, and one absent point."""
    for seed in range(4):
        points, weights, centre = draw(seed, 13)
        expected = brute_force(flatten_rows(points), weights, flatten(centre))
        np.testing.assert_allclose(flatten(aggregate(aggregator, points, weights, centre)), expected, rtol=0,
                                   atol=1e-11)


def test_distances_have_no_cancellation():
    """Points near 1e4 that are 1e-3 apart in float32: a difference of squared norms would lose their distances."""
    offsets = np.arange(4, dtype=np.float32)[:, None] * np.float32(2**-9)
    np.testing.assert_array_equal(distances(jnp.asarray(np.float32(2**13) + offsets)), np.abs(offsets - offsets.T))


SCALES = (2.0**-100, 2.0**100)  # about 1e-30 and 1e30, whose squares float32 cannot represent


@pytest.mark.when_changed
@nightly.parametrize("of_scale", [
    lambda s: rv.aggregators.Bulyan(0.15), lambda s: rv.aggregators.NearestNeighbourMixing(rv.aggregators.Mean(), 0.2),
    lambda s: rv.aggregators.GeometricMedian(1e-3 * s), lambda s: rv.aggregators.CentredClipping(2.0 * s),
    lambda s: rv.aggregators.NormBound(), lambda s: rv.aggregators.TrustScores(0),
    lambda s: rv.aggregators.MoreauCentre(rv.penalties.L1(), 0.5 * s),
    # Parts of those above.
    lambda s: rv.aggregators.Krum(0.2), lambda s: rv.aggregators.MultiKrum(0.2),
    lambda s: rv.aggregators.MoreauCentre(rv.penalties.SquaredL2(), 0.5),
    lambda s: rv.aggregators.Bucketing(rv.aggregators.TrimmedMean(0.2)),
], per_commit=3, ids=lambda of_scale: type(of_scale(1.0)).__name__)
def test_the_aggregate_scales_with_the_replies_in_float32(of_scale):
    """Replies, the server's model and the lengths that the aggregator has, times a power of two, which is exact."""
    points, weights, centre = draw(12, 12)
    with jax.enable_x64(False):
        expected, *scaled = (
            flatten(aggregate(of_scale(s), *jax.tree.map(lambda x, s=s: (x * s).astype(np.float32), (points,)),
                              weights.astype(np.float32),
                              jax.tree.map(lambda x, s=s: (x * s).astype(np.float32), centre))) / s
            for s in (1.0, *SCALES))
    for result in scaled:
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.when_changed
@nightly.parametrize("attack", [
    rv.attacks.Adaptive(rv.aggregators.Krum(0.2)), rv.attacks.MinMax(), rv.attacks.Mimic(), rv.attacks.ALIE(),
    rv.attacks.IPM()], ids=lambda attack: type(attack).__name__)
def test_what_malicious_parties_send_scales_with_the_updates_in_float32(attack):
    updates = np.random.default_rng(3).normal(size=(10, 4))
    honest = jnp.arange(10) < 8
    with jax.enable_x64(False):
        expected, *scaled = (np.asarray(attack.collude(jnp.asarray(updates * s, jnp.float32), honest, ~honest)) / s
                             for s in (1.0, *SCALES))
    for result in scaled:
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


def test_krum_compares_honest_replies_of_any_size_beside_a_malicious_one_of_another_size():
    """One scale for all replies would round the honest differences to zero, and the first reply would be chosen."""
    honest = np.random.default_rng(4).normal(size=(9, 3))
    honest[0] += 4  # the first reply is the worst of the honest ones
    with jax.enable_x64(False):
        expected = aggregate(rv.aggregators.Krum(0.2), np.concatenate([honest, np.full((2, 3), 1e6)]))
        small = np.concatenate([honest * 2.0**-100, np.full((2, 3), 1e30)]).astype(np.float32)
        np.testing.assert_allclose(aggregate(rv.aggregators.Krum(0.2), small) * 2.0**100, expected, rtol=1e-6)


@pytest.mark.nightly
def test_centred_clipping_converges_to_the_moreau_centre_of_the_l2_norm():
    points, weights, centre = draw(5)
    points = jax.tree.map(lambda p: np.where(p > 100, 5, p), points)
    # One step contracts by a constant factor only, so 21 calls of 60 iterations each continue from the last point.
    for _ in range(21):
        centre = aggregate(rv.aggregators.CentredClipping(0.8, iterations=60), points, weights, centre)
    expected = aggregate(rv.aggregators.MoreauCentre(rv.penalties.L2Norm(), 0.8, **CONVERGED), points, weights)
    np.testing.assert_allclose(flatten(centre), flatten(expected), atol=1e-10)


@pytest.mark.when_changed
def test_clipping_without_a_centre_starts_at_the_coordinate_median():
    points, weights, _ = draw(6)
    median = aggregate(rv.aggregators.CoordinateMedian(), points, weights)
    for aggregator in (rv.aggregators.CentredClipping(0.5), rv.aggregators.NormBound()):
        jax.tree.map(np.testing.assert_array_equal, aggregate(aggregator, points, weights),
                     aggregate(aggregator, points, weights, median))


def test_the_server_passes_its_model_to_the_aggregator():
    """With a norm bound near zero the shared model of FedAvg, Ditto and Fed+ does not move."""
    tiny_bound = rv.aggregators.NormBound(1e-9)
    replies = make_replies({"w": np.full((4, 2), 5.0)})
    solver, model = rv.solvers.GD(0.1), {"w": jnp.array([1.0, 2.0])}
    for algorithm in (rv.robust(solver, tiny_bound), rv.fedplus_pull(solver, tiny_bound),
                      eqx.tree_at(lambda d: d.aggregator, rv.ditto(solver), tiny_bound)):
        after, _ = algorithm.phases[0].server(model, replies, jax.random.key(0))
        np.testing.assert_allclose(after["w"], model["w"], atol=1e-8)


AGGREGATORS = {
    "mean": rv.aggregators.Mean(),
    "coordinate median": rv.aggregators.CoordinateMedian(),
    "geometric median": rv.aggregators.GeometricMedian(1e-3, **CONVERGED),
    "L1": rv.aggregators.MoreauCentre(rv.penalties.L1(), 0.3, **CONVERGED),
    "L2Norm": rv.aggregators.MoreauCentre(rv.penalties.L2Norm(), 0.3, **CONVERGED),
    "SquaredL2": rv.aggregators.MoreauCentre(rv.penalties.SquaredL2(), 0.3, **CONVERGED),
    "trimmed mean": rv.aggregators.TrimmedMean(0.2),
    "Krum": rv.aggregators.Krum(0.2),
    "multi-Krum": rv.aggregators.MultiKrum(0.2),
    "Bulyan": rv.aggregators.Bulyan(0.15),
    "centred clipping": rv.aggregators.CentredClipping(0.9),
    "norm bound": rv.aggregators.NormBound(),
    "constant norm bound": rv.aggregators.NormBound(0.9),
}


@nightly.parametrize(("dtype", "far"), [(jnp.float16, 6e4), (jnp.bfloat16, 1e8)], ids=["float16", "bfloat16"],
                     per_commit=0)
@pytest.mark.parametrize("name", AGGREGATORS)
def test_half_precision_agrees_with_float64(name, dtype, far):
    """Nine replies, one of them malicious: the squares of its distance overflow in float16, and the weights of the
    geometric median underflow.
    """
    rng = np.random.default_rng(10)
    points, centre = rng.normal(size=(PARTIES, 40)), rng.normal(size=40)
    points[5] = far * rng.uniform(-1, 1, 40)
    points, centre = jnp.asarray(points, dtype), jnp.asarray(centre, dtype)
    aggregator = rv.aggregators.GeometricMedian() if name == "geometric median" else AGGREGATORS[name]
    actual = aggregate(aggregator, points, centre=centre)
    expected = aggregate(aggregator, np.asarray(points, np.float64), centre=np.asarray(centre, np.float64))
    assert actual.dtype == dtype
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=2 * eps, atol=2 * eps)
    assert not aggregator.breakdown_point or np.linalg.norm(expected) < 10


@pytest.mark.nightly
def test_a_run_in_half_precision():
    check_half_precision(rv.rfa)


# Breakdown points.


N = 20


def draw_with_malicious(count, value, dtype=np.float64):
    rng = np.random.default_rng(8)
    points = rng.normal(size=(N, 3))
    points[:count] = value * np.array([1, -1, 0.5]) + rng.normal(size=(count, 3))
    return rng.permutation(points).astype(dtype)


def distance(aggregator, malicious, value=1e6, dtype=np.float64):
    """The distance of the aggregate from the origin with this number of malicious points."""
    point = aggregate(aggregator, draw_with_malicious(malicious, value, dtype), centre=np.zeros(3, dtype))
    assert point.dtype == dtype
    return float(np.linalg.norm(np.asarray(point, np.float64)))


@pytest.mark.when_changed
@pytest.mark.parametrize("name", [n for n in AGGREGATORS if n not in ("Krum", "Bulyan", "centred clipping",
                                                                      "constant norm bound")])
def test_malicious_replies_above_the_breakdown_point_move_the_aggregate(name):
    """Krum and Bulyan withstand one malicious reply more than they state, and a constant radius bounds every step."""
    aggregator = AGGREGATORS[name]
    count = 11 if aggregator.breakdown_point == 0.5 else round(aggregator.breakdown_point * N) + 1
    assert distance(aggregator, count) > 1e4


@pytest.mark.parametrize(("aggregator", "bound"), [
    (rv.aggregators.CentredClipping(0.9), 2.7), (rv.aggregators.NormBound(0.9), 0.9)])
def test_a_constant_radius_bounds_the_step_if_all_replies_are_malicious(aggregator, bound):
    assert bound * 0.9 < distance(aggregator, N) <= bound * (1 + 1e-12)


@pytest.mark.parametrize("aggregator", [
    rv.aggregators.TrimmedMean(0.2), rv.aggregators.Krum(0.2), rv.aggregators.MultiKrum(0.2),
    rv.aggregators.Bulyan(0.2), rv.aggregators.CentredClipping(1.0), rv.aggregators.NormBound()], ids=repr)
def test_huge_malicious_replies_have_no_effect_in_float32(aggregator):
    """Squares of 1e30 overflow, and rounding leaves 1e-8 of a weight; neither may let a malicious reply through."""
    assert distance(aggregator, 4, value=1e30, dtype=np.float32) < 10


def test_the_breakdown_point_of_a_moreau_centre_follows_from_its_penalty():
    p = rv.penalties
    layers = {"a": p.L1(), "b": p.Scaled(p.L2Norm(), 2.0)}
    bounded = (p.L1(), p.L2Norm(), p.Scaled(p.L1(), 3.0), p.PerLayer(layers))
    unbounded = (p.SquaredL2(), p.Zero(), p.OriginIndicator(), p.Quadratic(np.eye(2)),
                 p.PerLayer(layers, default=p.SquaredL2()))
    assert {rv.aggregators.MoreauCentre(penalty, 0.1).breakdown_point for penalty in bounded} == {0.5}
    assert {rv.aggregators.MoreauCentre(penalty, 0.1).breakdown_point for penalty in unbounded} == {0.0}


# Refusals.


@pytest.mark.parametrize(("build", "message"), [
    (lambda: rv.aggregators.TrimmedMean(0.5), r"TrimmedMean\(share=0.5\).*\[0, 1/2\)"),
    (lambda: rv.aggregators.MultiKrum(-0.1), r"MultiKrum\(share=-0.1\)"),
    (lambda: rv.aggregators.Bulyan(0.25), r"Bulyan\(share=0.25\).*\[0, 1/4\).*MultiKrum"),
    (lambda: rv.aggregators.MultiKrum(0.2, keep=0), r"MultiKrum\(keep=0\)"),
    (lambda: rv.aggregators.CentredClipping(0.0), r"CentredClipping\(radius=0.0\)"),
    (lambda: rv.aggregators.CentredClipping(1.0, iterations=0), r"CentredClipping\(iterations=0\)"),
    (lambda: rv.aggregators.NormBound(-1.0), r"NormBound\(radius=-1.0\)"),
])
def test_parameters_out_of_range_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(("aggregator", "parties", "message"), [
    (rv.aggregators.Bulyan(0.2), 10, r"2 of 10 replies are malicious.* = 11 replies.*a share below 0.2"),
    (rv.aggregators.Krum(0.4), 5, r"Krum.* = 7.*a share below 0.4"),
    (rv.aggregators.Bulyan(0.2), 6, r"Bulyan.* = 7.*TrimmedMean or a median"),
])
def test_a_cohort_that_is_too_small_is_refused_before_the_first_round(aggregator, parties, message):
    problem = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(2)] * parties), jnp.ones((parties, 2)))
    with pytest.raises(rv.InputError, match=message):
        rv.simulate(rv.robust(rv.solvers.GD(0.1), aggregator), problem, rounds=1, progress=False)


MEDIAN = rv.aggregators.CoordinateMedian()


@pytest.mark.parametrize(("aggregator", "share", "message"), [
    (rv.aggregators.TrimmedMean(0.2), 0.3, "0.3 of the parties are malicious, but the .* TrimmedMean is 0.2"),
    (rv.aggregators.MultiKrum(0.3), 0.4, "MultiKrum is 0.3"),
    (MEDIAN, 0.5, "CoordinateMedian is 0.5"),
])
def test_more_malicious_parties_than_the_breakdown_point_are_warned_of(aggregator, share, message):
    inner = rv.combinators.Anderson(rv.robust(rv.solvers.GD(0.1), aggregator))
    with pytest.warns(BreakdownWarning, match=message):
        rv.attacked(inner, rv.attacks.SignFlip(), share=share)


def test_named_malicious_parties_are_compared_with_the_breakdown_point_when_their_number_is_known():
    algorithm = rv.attacked(rv.robust(rv.solvers.GD(0.1), rv.aggregators.TrimmedMean(0.2)), rv.attacks.SignFlip(),
                            share=0.0, parties=(0, 3))
    algorithm.check(10)
    with pytest.warns(BreakdownWarning, match=r"0\.222 of the parties"):
        algorithm.check(9)


@pytest.mark.parametrize(("aggregator", "share"), [
    (rv.aggregators.TrimmedMean(0.2), 0.2), (rv.aggregators.Krum(0.3), 0.3), (MEDIAN, 0.49),
    (rv.aggregators.Mean(), 0.9)])
def test_a_share_within_the_breakdown_point_or_no_claim_of_one_is_not_warned_of(aggregator, share):
    """A warning is an error in the tests. A sweep over the share traces it, and is not compared."""
    algorithm = rv.robust(rv.solvers.GD(0.1), aggregator)
    with jax.enable_x64(False):  # in float32 a share of 0.2 is larger than the float64 number 0.2
        rv.attacked(algorithm, rv.attacks.SignFlip(), share=share)
    rv.attacked(algorithm, rv.attacks.SignFlip(), share=share)
    jax.jit(lambda share: rv.attacked(algorithm, rv.attacks.SignFlip(), share=share).share)(0.99)


@nightly.parametrize("aggregator", [
    rv.aggregators.Bulyan(0.15), rv.aggregators.Krum(0.2), rv.aggregators.MultiKrum(0.2, keep=3)], ids=repr)
def test_the_aggregate_of_few_replies_lies_between_them(aggregator):
    """One to four replies of a cohort of nine: no division by zero, and no effect of absent parties."""
    points, _, _ = draw(9)
    for count in range(1, 5):
        weights = (np.arange(PARTIES) < count).astype(float)
        present = flatten_rows(points)[:count]
        aggregated = flatten(aggregate(aggregator, points, weights))
        assert (present.min(axis=0) - 1e-12 <= aggregated).all()
        assert (aggregated <= present.max(axis=0) + 1e-12).all()


# The largest share of a party in the weight


@pytest.mark.when_changed
@pytest.mark.parametrize("weights", [[20.0, 1, 1, 1, 1], [5, 4, 1, 1, 1, 1], [1, 1, 1, 1], [0.7, 0.2, 0.1, 0, 0],
                                     [3, 0, 0, 0], [0, 0, 0, 0], [8, 8, 8, 0, 1, 1, 2]])
def test_limited_weights_are_the_largest_ones_within_the_share(weights):
    """min(w, c) with the largest c, which a search finds; equal weights if there are too few for the share."""
    weights = np.array(weights, float)
    limited = np.asarray(limited_weights(jnp.asarray(weights), 0.3))
    assert np.isclose(limited.sum(), weights.sum())
    if weights.max() <= 0.3 * weights.sum():
        expected = weights
    elif (weights > 0).sum() * 0.3 < 1:
        expected = weights.sum() * (weights > 0) / (weights > 0).sum()
    else:
        caps = np.linspace(0, weights.max(), 200_001)[1:]
        kept = [c for c in caps if c <= 0.3 * np.minimum(weights, c).sum() * (1 + 1e-9)]
        expected = np.minimum(weights, kept[-1])
        expected *= weights.sum() / expected.sum()
    np.testing.assert_allclose(limited, expected, rtol=1e-4)
    few = jnp.array([9.0, 1.0, 1.0])
    assert (limited_weights(few, 0.3) == few).all()  # three parties: no share of 0.3 is possible
    np.testing.assert_allclose(limited_weights(jnp.array([20.0, 1, 2, 1]), 0.25), 6, rtol=1e-6)
    equal = jnp.full(7, 1 / 7)
    assert (limited_weights(equal, 0.3) == equal).all()


@pytest.mark.when_changed
def test_robust_presets_limit_the_weight_that_a_party_claims():
    """All presets whose aggregate one reply cannot move without bound; a mean follows the weights."""
    claimed, shares = jnp.array([1.0, 1, 1, 1, 20]), {}
    for name, make in ((name, ROWS.get(name) or SAME[name][0]) for name in presets.__all__):
        algorithm = make(rv.SGD(0.1, batch_size=4, epochs=1))
        weights = with_limited_shares(algorithm, claimed)
        shares[name] = float(weights.max() / weights.sum()), is_robust(algorithm) and bool(aggregators_of(algorithm))
    robust = {name: share for name, (share, holds) in shares.items() if holds}
    assert {"rfa", "coordinate_median", "robust_interpolation", "fedgeomed_plus", "protected_fedplus"} <= {*robust}
    assert {name: share for name, share in robust.items() if share > 0.3 + 1e-6} == {}
    assert shares["fedavg"][0] == pytest.approx(20 / 24)
    wider = rv.combinators.Momentum(rv.combinators.ShareLimit(rv.rfa(rv.SGD(0.1)), 0.5))
    assert float(with_limited_shares(wider, claimed).max()) == pytest.approx(12)
    assert (with_limited_shares(rv.combinators.ShareLimit(rv.rfa(rv.SGD(0.1)), 1.0), claimed) == claimed).all()
    limited = with_limited_shares(rv.combinators.ShareLimit(rv.fedavg(rv.SGD(0.1)), 0.3), claimed)
    assert float(limited.max() / limited.sum()) == pytest.approx(0.3)


@pytest.mark.when_changed
@nightly.parametrize("method", ["rfa", "coordinate_median", "robust (TrimmedMean)", "robust (MultiKrum)",
                                "robust (Krum)", "robust (NormBound)", "fedgeomed_plus", "fedcomed_plus",
                                "robust_interpolation", "protected_fedplus"])
def test_a_party_that_claims_many_rows_does_not_move_a_robust_method(method):
    """One of five parties claims 20 times its rows and sends minus its model: within two points of no attack."""
    rounds = 20
    honest, attacked = (SHARES.accuracy(method, None, table, 0, rounds) for table in ("honest", "claim"))
    assert attacked > honest - 2
    if method == "rfa":  # what happens to a mean
        assert SHARES.accuracy("fedavg", None, "claim", 0, rounds) < 50
