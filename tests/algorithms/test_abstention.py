"""Abstention: a party that the centre does not suit trains alone and does not move the centre."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import equal, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms.methods.fedplus import AnchorMessage, FirstLoss

SOLVER = rv.solvers.GD(0.1, steps=5)
SQUARE = rv.penalties.SquaredL2()
PLUS, ABSTAINING = (rv.fedplus(SOLVER, SQUARE, sigma=0.5, abstains=abstains) for abstains in (False, True))
LINEARS = np.array([[1.0], [1.2], [0.8], [1.1], [0.9], [-40.0]])  # the optima, because all Hessians are 1


def problem():
    return rv.problems.QuadraticProblem(np.ones((6, 1, 1)), LINEARS)


@pytest.mark.parametrize(("centre", "takes_part"), [(0.5, True), (1.9, True), (-0.1, False), (2.1, False),
                                                    (np.nan, False)])
def test_a_party_takes_part_if_the_centre_has_at_most_the_first_loss(centre, takes_part):
    """f(w) = w^2/2 - w and f(w0) = f(0) = 0, so that centres in [0, 2] are no worse."""
    algorithm, oracle = ABSTAINING, problem().oracle(jnp.array(0))
    key, effort = jax.random.key(0), jnp.ones(())
    state = algorithm.init_party(jnp.zeros(1), oracle, key)
    assert state.first_loss == 0
    model = jnp.array([0.7])
    (after, first_loss), reply, _ = algorithm.phases[0].party(FirstLoss(model, state.first_loss),
                                                              AnchorMessage(jnp.array([centre]), ()), oracle, key,
                                                              effort)
    used = jnp.array([centre]) if takes_part else model
    expected, _, _ = PLUS.party(model, AnchorMessage(used, ()), oracle, key, effort)
    equal(after, expected)
    assert first_loss == 0
    np.testing.assert_array_equal(reply, expected if takes_part else [centre])


def end(algorithm):
    """The parties' models after 60 rounds."""
    state = trajectory(algorithm, problem(), 60, rv.participation.Full("uniform"))[-1]
    return np.asarray(state.parties.model if isinstance(state.parties, FirstLoss) else state.parties).ravel()


@pytest.mark.when_changed
@nightly.parametrize("penalty", [SQUARE, rv.penalties.L2Norm(), rv.penalties.L1()])
def test_an_outlier_reaches_its_own_optimum_and_the_others_agree(penalty):
    models = end(rv.fedplus(SOLVER, penalty, lam=1.0, abstains=True))
    np.testing.assert_allclose(models[5], -40, rtol=2e-2)
    assert np.abs(models[:5] - 1).max() < 0.25


@pytest.mark.when_changed
def test_without_abstention_an_outlier_is_pulled_to_the_mean():
    assert end(rv.fedavg_plus(SOLVER, sigma=(1 / 0.95 - 1) / 0.1))[5] > -36  # the default sigma, as a number


def test_solvers_that_protect_samples_are_refused():
    with pytest.raises(rv.InputError, match="compare losses on the samples that DPSGD protects"):
        rv.fedplus(rv.solvers.DPSGD(0.5, steps=2), SQUARE, abstains=True)
