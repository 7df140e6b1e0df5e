"""Replies gathered one by one: what is let in, what is not, and why."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import resolvent as rv
from resolvent.algorithms.admission import admit, finite_rows, reason_to_refuse

LIKE = {"w": jax.ShapeDtypeStruct((2, 3), jnp.float64), "steps": jax.ShapeDtypeStruct((), jnp.int32)}
INDEX, WEIGHT, SHARES = np.array([7, 2, 5, 0]), np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.2, 0.2, 0.1, 0.1])


def reply(value=1.0, **changes):
    return {"w": np.full((2, 3), value), "steps": np.int32(4)} | changes


def test_replies_stand_in_the_cohorts_order_and_the_absent_are_zero():
    replies, refused = admit({5: reply(5.0), 7: reply(7.0)}, LIKE, INDEX, WEIGHT, SHARES)
    assert refused == {}
    np.testing.assert_array_equal(replies.payload["w"][:, 0, 0], [7, 0, 5, 0])
    np.testing.assert_array_equal(replies.payload["steps"], [4, 0, 4, 0])
    np.testing.assert_array_equal(replies.alive, [True, False, True, False])
    np.testing.assert_array_equal(replies.weight, [0.4, 0, 0.2, 0])
    np.testing.assert_array_equal(replies.shares, [0.2, 0, 0.1, 0])
    np.testing.assert_array_equal(replies.index, INDEX)
    assert (replies.payload["w"].dtype, replies.payload["steps"].dtype) == (jnp.float64, jnp.int32)
    nobody, _ = admit({}, LIKE, INDEX, WEIGHT, SHARES)
    assert not nobody.alive.any()


@pytest.mark.parametrize(("bad", "reason"), [
    (reply(np.nan), "w is not finite"),
    (reply(-np.inf), "w is not finite"),
    (reply(w=np.ones((3, 2))), r"w has shape [3, 2], expected [2, 3]"),
    (reply(w=np.ones((2, 3), np.float32)), "w is float32, expected float64"),
    (reply(steps=4.0), "steps is float64, expected int32"),
    (reply(w="all of it"), r"w has shape [], expected [2, 3]"),
    (reply(w=[1.0, 2.0]), "its structure is not the one expected"),
    (reply(more=1.0), "its structure is not the one expected"),
    ({"w": np.ones((2, 3))}, "its structure is not the one expected"),
    ({"w": np.ones((2, 3)), 1: 2}, "its structure is not the one expected"),
    (None, "its structure is not the one expected"),
    ((), "its structure is not the one expected"),
], ids=str)
def test_what_is_wrong_is_refused_with_its_reason_and_the_others_count(bad, reason):
    replies, refused = admit({7: reply(7.0), 2: bad}, LIKE, INDEX, WEIGHT, SHARES)
    assert refused == {2: reason}
    assert np.flatnonzero(replies.alive).tolist() == [0]
    assert (replies.weight[1], replies.shares[1]) == (0, 0)
    assert jax.tree.all(jax.tree.map(lambda leaf: bool((leaf[1] == 0).all()), replies.payload))


def test_nobody_replies_for_a_cohort_that_it_is_not_in():
    replies, refused = admit({7: reply(7.0), 3: reply(3.0)}, LIKE, INDEX, WEIGHT, SHARES)
    assert refused == {3: "it is not of this round's cohort"}
    assert np.flatnonzero(replies.alive).tolist() == [0]


@pytest.mark.parametrize("codec", [rv.codecs.RandK(k=2), rv.codecs.TopK(k=2), rv.codecs.NaturalCompression(), rv.codecs.QSGD(), rv.codecs.Identity()],
                         ids=lambda c: type(c).__name__)
def test_compressed_replies_are_judged_by_what_they_stand_for(codec):
    """Natural compression's infinity is an integer on the wire."""
    rows = jnp.array([[1.0, 2.0], [jnp.inf, 1.0], [3.0, jnp.nan]])
    keys = jax.random.split(jax.random.key(0), 3)
    assert finite_rows(jax.vmap(codec.encode)(rows, keys), 3).tolist() == [True, False, False]
    like = jax.eval_shape(codec.encode, rows[0], keys[0])
    assert reason_to_refuse(codec.encode(rows[0], keys[0]), like) is None
    assert "is not finite" in reason_to_refuse(codec.encode(rows[1], keys[1]), like)
