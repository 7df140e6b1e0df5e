"""A model with a state in a federation: messages that are encoded and decoded follow the simulator."""

import jax
import pytest

import resolvent as rv
from algorithms.stateful_network import SMALL, problem
from federation.parts import check_trajectory

PARTICIPATION = rv.participation.Stragglers(rv.participation.Uniform(3), share=0.4)


@pytest.mark.when_changed
@pytest.mark.parametrize("policy", ["average", pytest.param("private", marks=pytest.mark.nightly)])
def test_a_federation_follows_the_simulator(policy, tmp_path):
    with jax.enable_x64(True):
        check_trajectory(rv.combinators.ModelState(rv.fedavg(SMALL), policy), problem((1, 5, 9, 4)), PARTICIPATION,
                         tmp_path)
