"""Replies collected from single messages: which count, which are refused, and why."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import resolvent as rv
from resolvent.algorithms.admission import finite_rows, reason_to_refuse
from resolvent.algorithms.participation import Cohort
from resolvent.algorithms.round import collect_replies

EXPECTED = {"w": jax.ShapeDtypeStruct((2, 3), jnp.float64), "steps": jax.ShapeDtypeStruct((), jnp.int32)}
INDEX = np.array([7, 2, 5, 0])


def cohort():
    return Cohort(index=jnp.asarray(INDEX), weight=jnp.array([0.4, 0.3, 0.2, 0.1]),
                  shares=jnp.array([0.2, 0.2, 0.1, 0.1]), alive=jnp.ones(4, bool), effort=jnp.ones(4),
                  late=jnp.zeros(4, bool))


def reply(value=1.0, **changes):
    return {"w": np.full((2, 3), value), "steps": np.int32(4)} | changes


def test_rows_are_in_the_cohorts_order_and_zero_for_absent_parties():
    replies, refused = collect_replies({5: reply(5.0), 7: reply(7.0)}, EXPECTED, cohort())
    assert refused == {}
    np.testing.assert_array_equal(replies.payload["w"][:, 0, 0], [7, 0, 5, 0])
    np.testing.assert_array_equal(replies.payload["steps"], [4, 0, 4, 0])
    np.testing.assert_array_equal(replies.alive, [True, False, True, False])
    np.testing.assert_array_equal(replies.weight, [0.4, 0, 0.2, 0])
    np.testing.assert_array_equal(replies.shares, [0.2, 0, 0.1, 0])
    np.testing.assert_array_equal(replies.index, INDEX)
    assert (replies.payload["w"].dtype, replies.payload["steps"].dtype) == (jnp.float64, jnp.int32)
    empty, _ = collect_replies({}, EXPECTED, cohort())
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
    replies, refused = collect_replies({7: reply(7.0), 2: bad}, EXPECTED, cohort())
    assert refused == {2: reason}
    assert np.flatnonzero(replies.alive).tolist() == [0]
    assert (replies.weight[1], replies.shares[1]) == (0, 0)
    assert jax.tree.all(jax.tree.map(lambda leaf: bool((leaf[1] == 0).all()), replies.payload))


def test_reply_of_a_party_outside_the_cohort_is_refused():
    replies, refused = collect_replies({7: reply(7.0), 3: reply(3.0)}, EXPECTED, cohort())
    assert refused == {3: "the party is not in this round's cohort"}
    assert np.flatnonzero(replies.alive).tolist() == [0]


CODECS = [rv.codecs.RandK(k=2), rv.codecs.TopK(k=2), rv.codecs.NaturalCompression(), rv.codecs.QSGD(),
          rv.codecs.Identity()]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: type(codec).__name__)
def test_compressed_replies_are_checked_after_decoding(codec):
    """An integer on the wire can stand for infinity, as in natural compression."""
    rows = jnp.array([[1.0, 2.0], [jnp.inf, 1.0], [3.0, jnp.nan]])
    keys = jax.random.split(jax.random.key(0), 3)
    assert finite_rows(jax.vmap(codec.encode)(rows, keys), 3).tolist() == [True, False, False]
    expected = jax.eval_shape(codec.encode, rows[0], keys[0])
    assert reason_to_refuse(codec.encode(rows[0], keys[0]), expected) is None
    assert "is not finite" in reason_to_refuse(codec.encode(rows[1], keys[1]), expected)
