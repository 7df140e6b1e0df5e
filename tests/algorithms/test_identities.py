"""Algorithms that are one and the same, over whole trajectories, with sampled parties, stragglers and minibatches."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, trajectory

import resolvent as rv
from resolvent.algorithms.methods.fedplus import FedPlus, ProxAnchor

SOLVER = rv.SGD(0.2, batch_size=4, epochs=3)
WHO = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
ROUNDS = 6


def fed_plus(penalty=None, aggregator=None, *, sigma=0.0, delta=0.1, lam=0.0, stragglers="keep"):
    return FedPlus(solver=SOLVER, anchor=ProxAnchor(rv.penalties.OriginIndicator() if penalty is None else penalty, delta),
                   aggregator=rv.aggregators.Mean() if aggregator is None else aggregator, sigma=sigma, lam=lam,
                   stragglers=stragglers)


def servers(algorithm):
    return [s.server for s in trajectory(algorithm, classification(), ROUNDS, WHO)]


# Table 1 of Fed+: lam = 1 starts at the centre, and the indicator of {0} anchors there.
TABLE_1 = {
    "FedAvg": (fed_plus(lam=1.0, stragglers="drop"), rv.fedavg(SOLVER)),
    "FedProx": (fed_plus(lam=1.0, sigma=0.7), rv.fedprox(SOLVER, mu=0.7)),
    "RFA": (fed_plus(aggregator=rv.aggregators.GeometricMedian(), lam=1.0, stragglers="drop"), rv.rfa(SOLVER)),
    "coordinate median": (fed_plus(aggregator=rv.aggregators.CoordinateMedian(), lam=1.0, stragglers="drop"),
                          rv.coordinate_median(SOLVER)),
    "FedProx as fedplus": (rv.fedplus(SOLVER, rv.penalties.OriginIndicator(), sigma=0.7, lam=1.0), rv.fedprox(SOLVER, mu=0.7)),
}


@pytest.mark.parametrize("name", TABLE_1)
def test_table_1(name):
    one, other = TABLE_1[name]
    equal(servers(one), servers(other))


@pytest.mark.parametrize("penalty", [rv.penalties.Zero(), rv.penalties.L1(), rv.penalties.SquaredL2()], ids=lambda p: type(p).__name__)
def test_without_sigma_and_lam_parties_are_alone(penalty):
    one = trajectory(rv.fedplus(SOLVER, penalty, sigma=0.0), classification(), ROUNDS, WHO)
    other = trajectory(rv.local(SOLVER), classification(), ROUNDS, WHO)
    equal([s.parties for s in one], [s.parties for s in other])


def test_fedprox_without_mu_is_fedavg_that_keeps_partial_work():
    equal(servers(rv.fedprox(SOLVER, mu=0.0)), servers(rv.fedavg(SOLVER, stragglers="keep")))


def test_dropping_stragglers_makes_a_difference():
    kept, dropped = servers(rv.fedavg(SOLVER, stragglers="keep")), servers(rv.fedavg(SOLVER))
    with pytest.raises(AssertionError):
        equal(kept, dropped)


def test_fedavg_plus_uses_the_mean_because_it_is_the_moreau_centre_of_a_square():
    general = rv.fedplus(SOLVER, rv.penalties.SquaredL2(), sigma=0.5, delta=0.3)
    equal(trajectory(general, classification(), ROUNDS, WHO),
          trajectory(rv.fedavg_plus(SOLVER, sigma=0.5, delta=0.3), classification(), ROUNDS, WHO))


def test_pulling_by_delta_over_one_plus_delta_is_fedavg_plus():
    pull = rv.fedplus_pull(SOLVER, rv.aggregators.Mean(), gamma=0.3 / 1.3, sigma=0.5)
    equal(trajectory(pull, classification(), ROUNDS, WHO),
          trajectory(rv.fedavg_plus(SOLVER, sigma=0.5, delta=0.3), classification(), ROUNDS, WHO))


def test_the_same_pull_for_each_party_is_one_pull():
    one = rv.fedplus_pull(SOLVER, rv.aggregators.CoordinateMedian(), gamma=0.4)
    each = rv.fedplus_pull(SOLVER, rv.aggregators.CoordinateMedian(), gamma=jnp.full(6, 0.4))
    equal(trajectory(one, classification(), ROUNDS, WHO), trajectory(each, classification(), ROUNDS, WHO))


def test_a_separable_penalty_per_layer_is_the_penalty_of_the_whole():
    layers = rv.penalties.PerLayer({"weight": rv.penalties.L1()}, default=rv.penalties.L1())
    equal(trajectory(rv.fedplus(SOLVER, layers, sigma=0.5), classification(), ROUNDS, WHO),
          trajectory(rv.fedcomed_plus(SOLVER, sigma=0.5), classification(), ROUNDS, WHO), 1e-6)


def test_a_layer_of_its_own_delta():
    """The bias never personal, the weights alone: the biases follow FedProx's consensus, the weights stay local."""
    layers = rv.penalties.PerLayer({"bias": rv.penalties.OriginIndicator()}, default=rv.penalties.Zero())
    states = trajectory(rv.fedplus(rv.solvers.GD(0.3), layers, sigma=50.0), classification(), 200, rv.participation.Full())
    parties = states[-1].parties
    spread_of_bias = float(jnp.ptp(parties["bias"], axis=0).max())
    spread_of_weight = float(jnp.ptp(parties["weight"], axis=0).max())
    assert spread_of_bias < 0.05 < 0.5 < spread_of_weight


def test_remembering_everybody_matters_only_for_the_absent():
    full = rv.participation.Full()
    for preset in (rv.fedavg_plus, rv.fedgeomed_plus):
        active, everyone = (preset(SOLVER, sigma=0.5, aggregate=over) for over in ("active", "all"))
        a, b = (trajectory(x, classification(), 3, full) for x in (active, everyone))
        equal([s.parties for s in a], [s.parties for s in b])
        equal([s.server for s in a], [s.server.inner for s in b])
    sampled = trajectory(rv.fedavg_plus(SOLVER, sigma=0.5, aggregate="all"), classification(), 3, WHO)
    for state in sampled[1:]:
        # Fed+ replies with the party's own model, so the server's memory is the parties' states, absent or not.
        equal(state.server.replies, state.parties)


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_remembered_aggregates_over_all_with_their_weights(weighting):
    """Algorithm 1 of Fed+ read literally: the mean over all N, absent ones with their last model."""
    who = rv.participation.Uniform(cohort=2, weighting=weighting)
    states = trajectory(rv.fedavg_plus(SOLVER, aggregate="all"), classification(), 4, who)
    weights = np.asarray(who.shares(classification().sizes))
    for state in states[1:]:
        equal(state.server.inner, {k: np.tensordot(weights, v, 1) for k, v in state.parties.items()})


def test_remembered_refuses_replies_that_are_no_models():
    with pytest.raises(TypeError, match=r"StaleReplies needs .* got LocalTraining: nothing could stand for a party"):
        rv.combinators.StaleReplies(rv.local(SOLVER))


def test_the_implicit_step_is_an_explicit_one_of_length_kappa_eta():
    """Proposition 1 of Fed+."""
    eta, sigma = 0.3, 1.7
    kappa = 1 / (1 + sigma * eta)
    implicit = rv.fedprox(rv.SGD(eta, batch_size=4, epochs=2), mu=sigma)
    explicit = rv.fedprox(rv.SGD(kappa * eta, batch_size=4, epochs=2, proximal="explicit"), mu=sigma)
    equal(servers(implicit), servers(explicit))
