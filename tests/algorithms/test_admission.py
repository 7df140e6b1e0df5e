"""Replies collected from single messages: which count, which are refused, and why."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import HUGE, Huge

import nightly
import resolvent as rv
from resolvent.algorithms.admission import admitted, reason_to_refuse, update_norm
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.round import collect_replies
from resolvent.math import tree
from resolvent.simulator.engine.rounds import record_rounds

EXPECTED = {"w": jax.ShapeDtypeStruct((2, 3), jnp.float64), "steps": jax.ShapeDtypeStruct((), jnp.int32)}
INDEX = np.array([7, 2, 5, 0])


def cohort():
    return Cohort(index=jnp.asarray(INDEX), weight=jnp.array([0.4, 0.3, 0.2, 0.1]),
                  shares=jnp.array([0.2, 0.2, 0.1, 0.1]), alive=jnp.ones(4, bool), effort=jnp.ones(4),
                  late=jnp.zeros(4, bool))


def reply(value=1.0, **changes):
    return {"w": np.full((2, 3), value), "steps": np.int32(4)} | changes


def test_rows_are_in_the_cohorts_order_and_zero_for_absent_parties():
    replies, refused, _ = collect_replies({5: reply(5.0), 7: reply(7.0)}, EXPECTED, cohort())
    assert refused == {}
    np.testing.assert_array_equal(replies.payload["w"][:, 0, 0], [7, 0, 5, 0])
    np.testing.assert_array_equal(replies.payload["steps"], [4, 0, 4, 0])
    np.testing.assert_array_equal(replies.alive, [True, False, True, False])
    np.testing.assert_array_equal(replies.weight, [0.4, 0, 0.2, 0])
    np.testing.assert_array_equal(replies.shares, [0.2, 0, 0.1, 0])
    np.testing.assert_array_equal(replies.index, INDEX)
    assert (replies.payload["w"].dtype, replies.payload["steps"].dtype) == (jnp.float64, jnp.int32)
    empty, *_ = collect_replies({}, EXPECTED, cohort())
    assert not empty.alive.any()


@pytest.mark.parametrize(("bad", "reason"), [
    (reply(np.nan), "w is not finite"),
    (reply(-np.inf), "w is not finite"),
    (reply(w=np.ones((3, 2))), r"w has shape [3, 2], expected [2, 3]"),
    (reply(w=np.ones((2, 3), np.float32)), "w has dtype float32, expected float64"),
    (reply(steps=4.0), "steps has dtype float64, expected int32"),
    (reply(w="all of it"), r"w has shape [], expected [2, 3]"),
    (reply(w=[1.0, 2.0]), "its structure is not the expected one"),
    (reply(more=1.0), "its structure is not the expected one"),
    ({"w": np.ones((2, 3))}, "its structure is not the expected one"),
    ({"w": np.ones((2, 3)), 1: 2}, "its structure is not the expected one"),
    (None, "its structure is not the expected one"),
    ((), "its structure is not the expected one"),
], ids=str)
def test_invalid_reply_is_refused_with_its_reason_and_the_others_count(bad, reason):
    replies, refused, _ = collect_replies({7: reply(7.0), 2: bad}, EXPECTED, cohort())
    assert refused == {2: reason}
    assert np.flatnonzero(replies.alive).tolist() == [0]
    assert (replies.weight[1], replies.shares[1]) == (0, 0)
    assert jax.tree.all(jax.tree.map(lambda leaf: bool((leaf[1] == 0).all()), replies.payload))


def test_reply_of_a_party_outside_the_cohort_is_refused():
    replies, refused, _ = collect_replies({7: reply(7.0), 3: reply(3.0)}, EXPECTED, cohort())
    assert refused == {3: "the party is not in this round's cohort"}
    assert np.flatnonzero(replies.alive).tolist() == [0]


def test_replies_without_weight_are_refused():
    """Their weighted mean would be 0/0. With a reply that has a weight, they count."""
    weightless = eqx.tree_at(lambda c: c.weight, cohort(), jnp.array([0.0, 0.3, 0.0, 0.0]))
    replies, refused, _ = collect_replies({7: reply(7.0), 5: reply(5.0)}, EXPECTED, weightless)
    assert refused == dict.fromkeys([7, 5], "the replies of the round have a total weight of zero")
    assert not replies.alive.any()
    replies, refused, _ = collect_replies({7: reply(7.0), 2: reply(2.0)}, EXPECTED, weightless)
    assert refused == {}
    assert np.flatnonzero(replies.alive).tolist() == [0, 1]


def test_cohort_with_a_party_twice_is_refused():
    twice = eqx.tree_at(lambda c: c.index, cohort(), jnp.array([7, 2, 7, 0]))
    with pytest.raises(rv.InputError, match="party 7 twice"):
        collect_replies({7: reply(7.0)}, EXPECTED, twice)


# Norms


def norms_of(*values):
    return jnp.array(values, jnp.float32)


@pytest.mark.parametrize(("norms", "counts"), [
    ((1, 2, 3, HUGE), (1, 1, 1, 0)),
    ((1, 2, 3, np.inf), (1, 1, 1, 0)),  # the norm overflows, the numbers are finite
    ((1, 2, 3000, 3), (1, 1, 1, 1)),
    ((1, 2, 3001, 3), (1, 1, 0, 1)),
    ((1, HUGE, HUGE, 2), (1, 1, 1, 1)),  # of the two in the middle the larger one is the median
    ((HUGE, np.nan, np.nan, 1), (1, 0, 0, 1)),  # of two replies it is not known which one is wrong
    ((HUGE, np.nan, np.nan, np.nan), (1, 0, 0, 0)),
    ((0, 0, 0, HUGE), (1, 1, 1, 1)),  # most parties have nothing to change
    ((np.inf, np.inf, 1, np.inf), (1, 1, 1, 1)),
    ((np.nan,) * 4, (0,) * 4),
])
def test_a_reply_beyond_a_multiple_of_the_median_does_not_count(norms, counts):
    everybody = jnp.ones(4, bool)
    assert admitted(norms_of(*norms), everybody, 1000.0).tolist() == [bool(c) for c in counts]
    without_limit = [bool(norm == norm) for norm in norms]
    assert admitted(norms_of(*norms), everybody, None).tolist() == without_limit


def test_parties_without_a_reply_are_not_in_the_median():
    arrived = jnp.array([True, True, True, False, False, False])
    assert admitted(norms_of(1, 2, 5000, HUGE, HUGE, HUGE), arrived, 1000.0).tolist() == [
        True, True, False, False, False, False]


def test_the_norm_is_that_of_the_update_if_replies_are_models():
    model, solver = {"w": jnp.full(3, 7.0), "b": jnp.zeros(1)}, rv.solvers.GD(0.1)
    reply = {"w": jnp.full(3, 9.0), "b": jnp.full(1, 2.0)}
    assert float(update_norm(rv.fedavg(solver), model, reply, 0)) == pytest.approx(4.0)
    assert float(update_norm(rv.scaffold(solver), (model, model), reply, 0)) == pytest.approx(np.sqrt(247))
    assert np.isnan(update_norm(rv.fedavg(solver), model, {**reply, "b": jnp.full(1, jnp.inf)}, 0))
    with jax.enable_x64(False):
        assert np.isposinf(update_norm(rv.fedavg(solver), jnp.zeros(3), jnp.full(3, HUGE), 0))


def quadratics(ids=range(5)):
    linears = jnp.stack([jnp.arange(4.0) + k for k in ids])
    return rv.problems.QuadraticProblem(jnp.stack([jnp.eye(4)] * len(ids)), linears)


@pytest.mark.when_changed
def test_a_huge_reply_does_not_ruin_a_simulation():
    """The others go on as if the party were absent."""
    inner = rv.fedavg(rv.solvers.GD(0.1, steps=1))
    attacked = rv.combinators.Attacked(inner, Huge(), parties=(3,))
    chunk = record_rounds(attacked, quadratics(), rounds=6, record=("update_norm",))
    assert np.asarray(chunk.record.refused).tolist() == [[k == 3 for k in range(5)]] * 6
    expected = record_rounds(inner, quadratics((0, 1, 2, 4)), rounds=6).state.server
    np.testing.assert_allclose(chunk.state.server.inner, expected, rtol=1e-6)
    assert np.asarray(chunk.record.party["update_norm"])[:, 3].min() > 1e30


@pytest.mark.nightly
def test_without_the_limit_a_huge_reply_ruins_the_model():
    attacked = rv.combinators.Attacked(rv.fedavg(rv.solvers.GD(0.1, steps=1)), Huge(), parties=(3,))
    unlimited = record_rounds(rv.combinators.NormLimit(attacked, None), quadratics(), rounds=6)
    assert not np.asarray(unlimited.record.refused)[0].any()
    assert np.abs(unlimited.state.server.inner.inner).max() > 1e30


def test_private_parties_have_no_bound():
    """A median of the replies would let a party change which others count, beyond the sensitivity of the noise."""
    private = rv.combinators.PrivateParties(rv.fedavg(rv.SGD(0.1)), cohort=10.0)
    assert private.norm_multiple is None
    assert rv.combinators.NormLimit(private, 5.0).norm_multiple is None
    assert rv.fedavg(rv.SGD(0.1)).norm_multiple == 10_000.0
    with pytest.raises(rv.InputError, match=r"\[1, inf\)"):
        rv.combinators.NormLimit(rv.fedavg(rv.SGD(0.1)), 0.5)


class SignCodec(rv.codecs.Codec):
    """A codec that encodes a vector as integers, which cannot stand for NaN."""

    unbiased = False

    def pack(self, x, key):
        return jnp.where(x > 0, 1, -1).astype(jnp.int8)

    def unpack(self, content, like):
        return content.astype(like.dtype)

    def count(self, size, dtype):
        return size

    def omega(self, size):
        return 1.0


CODECS = [rv.codecs.QSGD(), rv.codecs.RandK(k=1), SignCodec(), rv.codecs.Identity(), rv.codecs.RandK(k=2),
          rv.codecs.TopK(k=1), rv.codecs.NaturalCompression()]


@nightly.parametrize("codec", CODECS, ids=str)
def test_replies_are_checked_before_they_are_encoded(codec):
    """One entry that is not finite is enough, also if the codec leaves it out or encodes it as an integer."""
    vectors = jnp.array([[1.0, 2.0, -1.0], [1.0, jnp.inf, 1.0], [3.0, 0.5, jnp.nan]])
    rows, keys = jnp.tile(vectors, (8, 1)), jax.random.split(jax.random.key(0), 24)
    wires = jax.jit(jax.vmap(codec.encode))(rows, keys)
    compressed = rv.combinators.Compressed(rv.fedavg(rv.solvers.GD(0.1)), codec)
    norms = jax.jit(jax.vmap(lambda wire: update_norm(compressed, (), wire, 0)))(wires)
    assert admitted(norms, jnp.ones(24, bool), 1000.0).tolist() == [True, False, False] * 8
    expected = jax.eval_shape(codec.encode, rows[0], keys[0])
    for k in range(6):
        reason = reason_to_refuse(tree.rows(wires, k), expected)
        assert (reason is None) == (k % 3 == 0)


def test_decoded_replies_are_checked_again():
    """RandK multiplies by d/k, which can overflow."""
    codec, x = rv.codecs.RandK(k=1), jnp.full(4, jnp.finfo(jnp.float64).max)
    wire = codec.encode(x, jax.random.key(0))
    assert bool(wire.is_finite)
    assert "is not finite" in reason_to_refuse(wire, jax.eval_shape(codec.encode, x, jax.random.key(0)))


@pytest.mark.when_changed
def test_compressed_reply_that_is_not_finite_changes_neither_the_server_nor_the_party():
    """Party 1 replies with one NaN among four entries; RandK sends one of them."""
    problem = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(4)] * 3), jnp.ones((3, 4)))
    problem = eqx.tree_at(lambda p: p.linears, problem, problem.linears.at[1, 2].set(jnp.nan))
    algorithm = rv.combinators.Compressed(rv.fedavg(rv.solvers.GD(0.1, steps=1)), rv.codecs.RandK(k=1))
    chunk = record_rounds(algorithm, problem, rounds=20)
    assert np.asarray(chunk.record.refused).tolist() == [[False, True, False]] * 20
    assert jax.tree.all(jax.tree.map(lambda leaf: bool(jnp.isfinite(leaf).all()), chunk.state))
    assert not np.asarray(chunk.state.parties.extra[0])[1].any()
