"""Algorithms that are equal: whole trajectories with sampled parties, stragglers and minibatches."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms.methods.fedplus import FedPlus, ProxAnchor
from resolvent.algorithms.round import working_parties
from resolvent.testing.python_loop import draw_cohort

SOLVER = rv.SGD(0.2, batch_size=4, epochs=3)
SAMPLED = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
ROUNDS = 6


def fed_plus(penalty=None, aggregator=None, *, sigma=0.0, delta=0.1, lam=0.0):
    anchor = ProxAnchor(rv.penalties.OriginIndicator() if penalty is None else penalty, delta)
    return FedPlus(solver=SOLVER, anchor=anchor, aggregator=rv.aggregators.Mean() if aggregator is None else aggregator,
                   sigma=sigma, lam=lam)


def run(algorithm, rounds=ROUNDS, participation=SAMPLED):
    return trajectory(algorithm, classification(), rounds, participation)


def server_states(algorithm):
    return [state.server for state in run(algorithm)]


# Table 1 of Fed+: with lam = 1 local work starts at the centre, and the indicator of {0} has its anchor there.
TABLE_1 = {
    "FedAvg": (fed_plus(lam=1.0), rv.fedavg(SOLVER)),
    "FedProx": (fed_plus(lam=1.0, sigma=0.7), rv.fedprox(SOLVER, mu=0.7)),
    "RFA": (fed_plus(aggregator=rv.aggregators.GeometricMedian(), lam=1.0), rv.rfa(SOLVER)),
    "coordinate median": (fed_plus(aggregator=rv.aggregators.CoordinateMedian(), lam=1.0),
                          rv.coordinate_median(SOLVER)),
    "FedProx as fedplus": (rv.fedplus(SOLVER, rv.penalties.OriginIndicator(), sigma=0.7, lam=1.0),
                           rv.fedprox(SOLVER, mu=0.7)),
}


@nightly.parametrize("name", sorted(TABLE_1, key=["RFA", "FedProx"].__contains__, reverse=True), per_commit=0)
def test_fedplus_contains_the_methods_of_table_1(name):
    equal(*map(server_states, TABLE_1[name]))


@nightly.parametrize("penalty", [rv.penalties.L1(), rv.penalties.Zero(), rv.penalties.SquaredL2()],
                     ids=lambda penalty: type(penalty).__name__, per_commit=0)
def test_fedplus_without_sigma_and_lam_is_local_training(penalty):
    equal([state.parties for state in run(rv.fedplus(SOLVER, penalty, sigma=0.0))],
          [state.parties for state in run(rv.local(SOLVER))])


# The presets that say for which number they are FedAvg, as functions of that number, and another number.
STEPS = rv.solvers.GD(0.2, steps=3)
FEDAVG_AT = {
    "fedprox": (lambda mu: rv.fedprox(STEPS, mu=mu), 0.0, 0.5),
    "robust": (lambda mu: rv.robust(STEPS, rv.aggregators.Mean(), mu=mu), 0.0, 0.5),
    "moon": (lambda mu: rv.moon(STEPS, mu=mu), 0.0, 0.5),
    "fedntd": (lambda beta: rv.fedntd(STEPS, beta=beta), 0.0, 0.5),
    "feddecorr": (lambda beta: rv.feddecorr(STEPS, beta=beta), 0.0, 0.5),
    "fedlc": (lambda tau: rv.fedlc(STEPS, tau=tau), 0.0, 0.5),
    "apfl": (lambda alpha: rv.apfl(STEPS, alpha=alpha, alpha_rate=0.0), 0.0, None),  # its shared model for every alpha
    "reptile": (lambda rate: rv.reptile(STEPS, server_rate=rate), 1.0, 0.5),
}


@pytest.mark.when_changed
@nightly.parametrize("name", FEDAVG_AT, others=nightly.WHEN_CHANGED)
def test_presets_that_are_fedavg_for_a_number_are_it_under_stragglers_for_a_traced_number(name):
    """The number is traced: another one runs the same program, and is not FedAvg."""
    rng, sizes = np.random.default_rng(0), (4, 7, 5, 6)
    data = rv.FederatedData.from_arrays([rng.normal(size=(n, 3)) for n in sizes],
                                        [rng.integers(0, 3, n) for n in sizes], validation=0, test=0,
                                        classes=["0", "1", "2"])
    problem = rv.problems.LearningProblem(rv.models.mlp(3, 3, width=4), data)
    slow = rv.participation.Stragglers(rv.participation.Uniform(cohort=3), share=0.67)
    make, number, other = FEDAVG_AT[name]

    def model(algorithm):
        return algorithm.server_model(trajectory(algorithm, problem, 2, slow)[-1].server)

    fedavg = model(rv.fedavg(STEPS))
    equal(model(make(jnp.asarray(number))), fedavg)
    if other is not None:
        with pytest.raises(AssertionError):
            equal(model(make(jnp.asarray(other))), fedavg)


def test_the_run_says_whether_partial_work_counts_and_a_method_can_differ():
    for work in ("keep", "drop"):
        slow = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5, work=work)
        _, cohort = draw_cohort(slow, jnp.arange(3, 9), 0, 0)
        for algorithm in (rv.fedavg(SOLVER), rv.rfa(SOLVER), rv.moon(SOLVER), rv.scaffold(SOLVER), rv.local(SOLVER)):
            assert working_parties(algorithm, cohort).sum() == (4 if work == "keep" else 2)
        for own in ("keep", "drop"):
            for method in (rv.fedavg, rv.fedprox):
                algorithm = rv.combinators.SharedUntilTrained(method(SOLVER, stragglers=own))
                assert working_parties(algorithm, cohort).sum() == (4 if own == "keep" else 2)


@pytest.mark.nightly
def test_the_moreau_centre_of_a_square_is_the_mean_of_fedavg_plus():
    square = rv.penalties.SquaredL2()
    general = fed_plus(square, rv.aggregators.MoreauCentre(square, 0.3), sigma=0.5, delta=0.3)
    equal(run(general), run(rv.fedavg_plus(SOLVER, sigma=0.5, delta=0.3)))


@pytest.mark.nightly
def test_a_pull_of_delta_over_one_plus_delta_is_fedavg_plus():
    pull = rv.fedplus_pull(SOLVER, rv.aggregators.Mean(), gamma=0.3 / 1.3, sigma=0.5)
    equal(run(pull), run(rv.fedavg_plus(SOLVER, sigma=0.5, delta=0.3)))


@pytest.mark.nightly
def test_one_pull_for_all_is_the_same_pull_for_each_party():
    median = rv.aggregators.CoordinateMedian()
    equal(run(rv.fedplus_pull(SOLVER, median, gamma=0.4)), run(rv.fedplus_pull(SOLVER, median, gamma=jnp.full(6, 0.4))))


@pytest.mark.nightly
def test_a_separable_penalty_per_layer_is_the_penalty_of_the_whole_model():
    layers = rv.penalties.PerLayer({"weight": rv.penalties.L1()}, default=rv.penalties.L1())
    equal(run(rv.fedplus(SOLVER, layers, sigma=0.5)), run(rv.fedcomed_plus(SOLVER, sigma=0.5)), 1e-6)


@pytest.mark.nightly
def test_layers_with_different_penalties():
    """The biases follow FedProx's consensus, because none may be personal; the weights are trained locally."""
    layers = rv.penalties.PerLayer({"bias": rv.penalties.OriginIndicator()}, default=rv.penalties.Zero())
    states = run(rv.fedplus(rv.solvers.GD(0.3), layers, sigma=50.0), 200, rv.participation.Full())
    parties = states[-1].parties
    spread_of_bias = float(jnp.ptp(parties["bias"], axis=0).max())
    spread_of_weight = float(jnp.ptp(parties["weight"], axis=0).max())
    assert spread_of_bias < 0.05 < 0.5 < spread_of_weight


@pytest.mark.nightly
def test_stale_replies_matter_only_for_absent_parties():
    full = rv.participation.Full()
    for preset in (rv.fedavg_plus, rv.fedgeomed_plus):
        active, all_parties = (run(preset(SOLVER, sigma=0.5, aggregate=p), 3, full) for p in ("active", "all"))
        equal([state.parties for state in active], [state.parties for state in all_parties])
        equal([state.server for state in active], [state.server.inner for state in all_parties])
    for state in run(rv.fedavg_plus(SOLVER, sigma=0.5, aggregate="all"), 3)[1:]:
        # A party of Fed+ replies its own model, so the server stores the states of all parties, also of absent ones.
        equal(state.server.extra.replies, state.parties)


@pytest.mark.when_changed
@nightly.parametrize("weighting", ["size", "uniform"])
def test_stale_replies_have_the_shares_as_weights(weighting):
    """Algorithm 1 of Fed+ as printed: the mean over all N parties, absent ones with their last model."""
    participation = rv.participation.Uniform(cohort=2, weighting=weighting)
    shares = np.asarray(participation.shares(classification().sizes))
    for state in run(rv.fedavg_plus(SOLVER, sigma=0.5, aggregate="all"), 4, participation)[1:]:
        equal(state.server.inner, {name: np.tensordot(shares, leaf, 1) for name, leaf in state.parties.inner.items()})


def test_stale_replies_must_be_models():
    with pytest.raises(rv.InputError, match=r"StaleReplies.*LocalTraining"):
        rv.combinators.StaleReplies(rv.local(SOLVER))


@pytest.mark.parametrize("preset", [rv.fedplus, rv.fedpi_plus], ids=lambda preset: preset.__name__)
def test_parties_to_aggregate_must_be_known(preset):
    with pytest.raises(rv.InputError, match="aggregate='everybody'"):
        preset(SOLVER, rv.penalties.L1(), aggregate="everybody")


@pytest.mark.nightly
def test_the_implicit_step_is_an_explicit_step_of_length_kappa_eta():
    """Source: Fed+, Proposition 1."""
    eta, sigma = 0.3, 1.7
    kappa = 1 / (1 + sigma * eta)
    implicit = rv.fedprox(rv.SGD(eta, batch_size=4, epochs=2), mu=sigma)
    explicit = rv.fedprox(rv.SGD(kappa * eta, batch_size=4, epochs=2, proximal="explicit"), mu=sigma)
    equal(server_states(implicit), server_states(explicit))
