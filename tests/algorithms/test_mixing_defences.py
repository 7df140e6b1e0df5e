"""Mixing aggregators, trust scores, momentum at the parties, and the attacks that collude, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, quadratic, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms.algorithm import Replies

EQUAL_WEIGHTS = rv.participation.Full("uniform")
GD = rv.solvers.GD(0.1, steps=2)
RNG = np.random.default_rng(5)
POINTS = RNG.normal(size=(9, 4))


def replies_of(points, weights=None, index=None):
    weights = jnp.ones(len(points)) if weights is None else jnp.asarray(weights, float)
    index = jnp.arange(len(points)) if index is None else jnp.asarray(index)
    return Replies(jnp.asarray(points), weights, index, weights > 0, weights)


@jax.jit
def aggregate(aggregator, replies, centre=None, key=None):
    """One compiled call; operations one by one would compile each."""
    return aggregator(replies, centre, key)[0]


def test_nearest_neighbour_mixing_by_numpy():
    weights = np.array([1, 2, 1, 0, 1, 3, 1, 1, 1.0])
    aggregator = rv.aggregators.NearestNeighbourMixing(rv.aggregators.CoordinateMedian(), share=0.25)
    result = aggregate(aggregator, replies_of(POINTS, weights))
    present = np.flatnonzero(weights)
    keep = len(present) - int(0.25 * len(present))
    mixed = []
    for k in present:
        nearest = sorted(present, key=lambda j: np.sum((POINTS[j] - POINTS[k]) ** 2))[:keep]
        mixed.append(np.average(POINTS[nearest], axis=0, weights=weights[nearest]))
    expected = aggregate(rv.aggregators.CoordinateMedian(), replies_of(np.array(mixed), weights[present]))
    np.testing.assert_allclose(result, expected, atol=1e-12)


def test_nearest_neighbour_mixing_without_malicious_replies_is_the_mean():
    aggregator = rv.aggregators.NearestNeighbourMixing(rv.aggregators.GeometricMedian(), share=0.0)
    np.testing.assert_allclose(aggregate(aggregator, replies_of(POINTS)), POINTS.mean(axis=0), atol=1e-6)


def test_bucketing_by_numpy():
    """Absent replies are in no bucket; the last bucket is smaller."""
    weights = np.array([1, 1, 0, 2, 1, 1, 1, 0, 1.0])
    aggregator = rv.aggregators.Bucketing(rv.aggregators.CoordinateMedian(), size=2)
    key = jax.random.key(3)
    order = [k for k in np.asarray(jax.random.permutation(key, 9)) if weights[k] > 0]
    buckets = [order[i:i + 2] for i in range(0, len(order), 2)]
    means = np.array([np.average(POINTS[b], axis=0, weights=weights[b]) for b in buckets])
    totals = np.array([weights[b].sum() for b in buckets])
    expected = aggregate(rv.aggregators.CoordinateMedian(), replies_of(means, totals))
    np.testing.assert_allclose(aggregate(aggregator, replies_of(POINTS, weights), None, key), expected, atol=1e-12)
    mean = aggregate(rv.aggregators.Bucketing(rv.aggregators.Mean(), size=4), replies_of(POINTS, weights), None, key)
    np.testing.assert_allclose(mean, np.average(POINTS, axis=0, weights=weights), atol=1e-12)


@pytest.mark.when_changed
def test_bucketing_in_a_round_draws_new_buckets():
    """The server passes a key; the mean of buckets of two of six is the mean."""
    mean = rv.robust(GD, rv.aggregators.Bucketing(rv.aggregators.Mean(), size=2))
    equal([s.server for s in trajectory(mean, quadratic(), 3, EQUAL_WEIGHTS)],
          [s.server for s in trajectory(rv.fedavg(GD), quadratic(), 3, EQUAL_WEIGHTS)])


def test_trust_scores_by_numpy():
    centre = RNG.normal(size=4)
    aggregator = rv.aggregators.TrustScores(trusted=2)
    updates = POINTS - centre
    reference = updates[2]
    cosines = np.maximum(updates @ reference / np.linalg.norm(updates, axis=1) / np.linalg.norm(reference), 0)
    scaled = updates * (np.linalg.norm(reference) / np.linalg.norm(updates, axis=1))[:, None]
    expected = centre + np.average(scaled, axis=0, weights=cosines)
    np.testing.assert_allclose(aggregate(aggregator, replies_of(POINTS), jnp.asarray(centre)), expected, atol=1e-12)
    absent = replies_of(POINTS, np.arange(9) != 2)
    np.testing.assert_allclose(aggregate(aggregator, absent, jnp.asarray(centre)), centre, atol=1e-15)
    with pytest.raises(rv.InputError, match="needs the server's model"):
        aggregator(replies_of(POINTS))


@nightly.parametrize("aggregator", [
    rv.aggregators.NearestNeighbourMixing(rv.aggregators.GeometricMedian(), share=0.4),
    rv.aggregators.Bucketing(rv.aggregators.GeometricMedian(), size=2),
    rv.aggregators.TrustScores(trusted=0)], ids=["mixing", "bucketing", "trust"], per_commit=0)
def test_malicious_replies_below_the_breakdown_point_move_the_aggregate_a_bounded_distance(aggregator):
    honest = RNG.normal(size=(11, 3))
    malicious = int(11 * min(aggregator.breakdown_point, 0.39) - 1e-9)
    distances = []
    for scale in (1e3, 1e9):
        points = honest.copy()
        points[-malicious:] = scale * np.array([1.0, -2.0, 0.5])
        distances.append(np.linalg.norm(np.asarray(aggregate(aggregator, replies_of(points), jnp.zeros(3)))))
    assert distances[1] < 20


def test_momentum_by_numpy():
    """Replies of models: m_k averages the differences from the model that was sent."""
    problem, decay = quadratic(), 0.8
    states = trajectory(rv.combinators.Momentum(rv.fedavg(GD), decay=decay), problem, 4, EQUAL_WEIGHTS)
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    shared, averages = np.zeros(4), None
    for state in states[1:]:
        w = np.repeat(shared[None], 6, axis=0)
        for _ in range(2):
            w = w - 0.1 * (np.einsum("kij,kj->ki", h, w) - g)
        averages = w - shared if averages is None else (1 - decay) * (w - shared) + decay * averages
        np.testing.assert_allclose(state.parties.extra.average, averages, atol=1e-12)
        shared = shared + averages.mean(axis=0)
        np.testing.assert_allclose(state.server.inner, shared, atol=1e-12)


@pytest.mark.nightly
def test_momentum_without_decay_is_the_inner_algorithm():
    problem = classification()
    momentum, plain = (trajectory(algorithm, problem, 3) for algorithm in (
        rv.combinators.Momentum(rv.fedavg(GD), decay=0.0), rv.fedavg(GD)))
    equal([state.server.inner for state in momentum], [state.server for state in plain])


def test_momentum_refuses_several_phases_and_encoded_replies():
    with pytest.raises(rv.InputError, match="one phase"):
        rv.combinators.Momentum(rv.feddane(GD))
    codec = rv.codecs.RandK(k=2)
    for encoded in (rv.marina(GD, codec=codec), rv.combinators.Compressed(rv.fedavg(GD), codec)):
        with pytest.raises(rv.InputError, match="are encoded"):
            rv.combinators.Momentum(rv.attacked(encoded, rv.attacks.SignFlip()))
    rv.combinators.Momentum(rv.combinators.CompressedMessages(rv.fedavg(GD), rv.codecs.QSGD()))


HONEST = jnp.array([True] * 6 + [False] * 3)


def test_mimic_sends_the_honest_update_that_is_farthest_from_the_mean():
    farthest = np.argmax(np.linalg.norm(POINTS[:6] - POINTS[:6].mean(axis=0), axis=1))
    np.testing.assert_array_equal(rv.attacks.Mimic().collude(jnp.asarray(POINTS), HONEST, ~HONEST), POINTS[farthest])


@pytest.mark.when_changed
def test_min_max_is_as_far_away_as_the_honest_updates_are_from_each_other():
    update = np.asarray(rv.attacks.MinMax().collude(jnp.asarray(POINTS), HONEST, ~HONEST))
    honest = POINTS[:6]
    between = max(np.linalg.norm(a - b) for a in honest for b in honest)
    assert max(np.linalg.norm(a - update) for a in honest) == pytest.approx(between, rel=1e-6)
    direction = (honest.mean(axis=0) - update) / honest.std(axis=0)
    np.testing.assert_allclose(direction, direction[0], rtol=1e-9)
    assert direction[0] > 0


@pytest.mark.when_changed
@pytest.mark.parametrize("aggregator", [rv.aggregators.Mean(), rv.aggregators.CoordinateMedian()],
                         ids=["mean", "median"])
def test_the_adaptive_attack_moves_its_aggregator_at_least_as_far_as_ipm_and_alie(aggregator):
    points, mean = jnp.asarray(POINTS), POINTS[:6].mean(axis=0)

    def damage(update):
        rows = jnp.where(HONEST[:, None], points, update)
        return float(np.linalg.norm(np.asarray(aggregate(aggregator, replies_of(rows))) - mean))

    adaptive = damage(rv.attacks.Adaptive(aggregator).collude(points, HONEST, ~HONEST))
    for attack in (rv.attacks.ALIE(1.0), rv.attacks.IPM(0.5), rv.attacks.MinMax()):
        assert adaptive >= 0.95 * damage(attack.collude(points, HONEST, ~HONEST))


@pytest.mark.when_changed
@nightly.parametrize("attack", [rv.attacks.ALIE(), rv.attacks.Mimic(), rv.attacks.MinMax(),
                                rv.attacks.Adaptive(rv.aggregators.Mean())], ids=lambda a: type(a).__name__)
def test_parties_that_reply_nothing_are_not_changed_by_an_attack(attack):
    problem = quadratic()
    attacked, plain = (trajectory(algorithm, problem, 1, EQUAL_WEIGHTS)[-1] for algorithm in (
        rv.attacked(rv.local(GD), attack, share=0.4), rv.local(GD)))
    equal(attacked.parties, plain.parties)
