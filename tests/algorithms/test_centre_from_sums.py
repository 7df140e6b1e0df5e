"""Robust aggregates from sums of replies: the direct form in the limit, and what a party can do to them."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import equal, personal_models, quadratic, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms.combinators.centre_from_sums import SearchMessage, StoredReply
from resolvent.algorithms.combinators.combinator import Wrapped
from resolvent.algorithms.traits import traffic_of

CentreFromSums = rv.combinators.CentreFromSums
GD = rv.solvers.GD(0.3, steps=3)
FULL = rv.participation.Full()
LATE = rv.participation.Stragglers(rv.participation.Uniform(4), share=0.5)
METHODS = {
    "fedgeomed_plus": rv.fedgeomed_plus(GD, sigma=0.5, delta=0.4),
    "fedcomed_plus": rv.fedcomed_plus(GD, sigma=0.5, delta=0.4),
    "rfa": rv.rfa(GD),
    "coordinate_median": rv.coordinate_median(GD),
}


class Searched(rv.aggregators.Aggregator):
    """The direct form: an aggregator that sees all replies and makes the same steps in a loop."""

    search: Any
    steps: int = eqx.field(static=True, default=3)
    linear: ClassVar[bool] = False
    breakdown_point: ClassVar[float] = 0.5

    def __call__(self, replies, centre=None, key=None):
        state = self.search.first(jax.tree.map(jnp.zeros_like, replies.mean()) if centre is None else centre)
        for _ in range(self.steps):
            point = self.search.point(state)
            state = self.search.step(state, replies.mean(jax.vmap(lambda x, at=point: self.search.reply(x, at))(
                replies.payload)))
        return self.search.centre(state), {}


@pytest.mark.when_changed
@nightly.parametrize("name", METHODS)
def test_the_trajectory_is_that_of_an_aggregator_which_sees_all_replies(name):
    """Partial participation and late parties; the steps themselves are tested with the searches."""
    inner, problem = METHODS[name], quadratic()
    direct = dataclasses.replace(inner, aggregator=Searched(inner.aggregator.search()))
    sums = CentreFromSums(inner, steps=3)
    expected, actual = (trajectory(a, problem, 5, LATE) for a in (direct, sums))
    equal([s.server for s in expected], [s.server.inner for s in actual])
    equal(personal_models(direct, problem, expected[-1]), personal_models(sums, problem, actual[-1]))
    assert not any(bool(s.server.extra.is_open) for s in actual)


@pytest.mark.nightly
def test_more_steps_come_closer_to_the_exact_centre():
    inner, problem = METHODS["fedgeomed_plus"], quadratic()
    exact = trajectory(inner, problem, 3, FULL)[-1].server
    errors = [_distance(trajectory(CentreFromSums(inner, steps=steps), problem, 3, FULL)[-1].server.inner, exact)
              for steps in (1, 3, 9)]
    assert errors[0] > 3 * errors[1] > 30 * errors[2] > 0


def _distance(a, b):
    return float(sum(jnp.sum((x - y) ** 2) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)) ** 0.5)


@pytest.mark.when_changed
def test_one_step_is_one_step_of_weiszfeld_by_plain_arithmetic():
    problem, inner = quadratic(), rv.rfa(GD)
    before, after = trajectory(CentreFromSums(inner, steps=1), problem, 1, FULL)
    models = np.asarray(after.parties.extra.reply)
    w0 = np.asarray(before.server.inner)
    beta = np.arange(1, 7) / np.linalg.norm(models - w0, axis=1)  # sizes are 1 to 6
    np.testing.assert_allclose(after.server.inner, beta @ models / beta.sum(), rtol=1e-12)


def test_a_party_without_a_reply_of_this_round_replies_zeros():
    algorithm = CentreFromSums(METHODS["fedgeomed_plus"], steps=2)
    stored = Wrapped(jnp.ones(3), StoredReply(jnp.ones(3), jnp.array(4)))
    for t, is_zero in ((4, False), (5, True), (-2, True)):
        message = Wrapped((), SearchMessage(jnp.zeros(3), jnp.array(t)))
        after, reply, _ = algorithm.phases[1].party(stored, message, None, None, None)
        assert all(bool((leaf == 0).all()) for leaf in jax.tree.leaves(reply)) == is_zero
        equal(after, stored)


@pytest.mark.nightly
def test_a_poisoned_party_does_not_move_the_centre_far():
    """A party whose model is 1e30 away: with sums of models the mean is lost, with sums of pulls it stays."""
    problem = quadratic()
    minimisers = np.linalg.solve(np.asarray(problem.hessians), np.asarray(problem.linears)[..., None])[..., 0]
    far = eqx.tree_at(lambda p: p.linears, problem, problem.linears.at[0].mul(1e30))
    for name in ("fedgeomed_plus", "fedcomed_plus", "coordinate_median"):
        algorithm = CentreFromSums(METHODS[name], steps=6)
        state = trajectory(algorithm, far, 4, FULL)[-1]
        centre = np.asarray(state.server.inner)
        assert np.linalg.norm(np.asarray(state.parties.extra.reply)[0]) > 1e25
        assert np.linalg.norm(centre) < 3 * np.abs(minimisers).max()


def test_its_server_needs_sums_only_and_the_traffic_counts_every_step():
    algorithm = CentreFromSums(rv.rfa(rv.SGD(0.1)), steps=4)
    assert rv.rfa(rv.SGD(0.1)).needs_individual_replies
    assert not algorithm.needs_individual_replies
    assert traffic_of(algorithm).up.numbers == 4  # the curvature of the norm in each step; and four pulls
    assert traffic_of(algorithm).up.models == 4


def test_only_unbounded_pulls_have_a_limit_of_their_length():
    inner = METHODS["fedgeomed_plus"]
    square = dataclasses.replace(inner, aggregator=rv.aggregators.MoreauCentre(rv.penalties.SquaredL2(), 0.4))
    assert CentreFromSums(inner).norm_multiple is None
    assert CentreFromSums(square).norm_multiple == inner.norm_multiple


@pytest.mark.parametrize(("make", "words"), [
    (lambda: CentreFromSums(rv.robust(GD, rv.aggregators.Krum())), "can be computed from sums, got Krum: use"),
    (lambda: CentreFromSums(rv.fedavg(GD)), "got Mean: use the method itself"),
    (lambda: CentreFromSums(rv.scaffold(GD)), "needs a method of one phase with an aggregator, got Scaffold"),
    (lambda: CentreFromSums(rv.rfa(GD), steps=0), "steps=0"),
])
def test_what_cannot_be_computed_from_sums_is_refused(make, words):
    with pytest.raises(rv.InputError, match=words):
        make()
