"""Anderson acceleration in both forms, and ergodic averaging."""


import jax
import jax.numpy as jnp
import pytest
from helpers import classification, equal, trajectory

import resolvent as rv
from resolvent.simulate.evaluate import deployed

ALIKE = rv.Full("uniform")
EXACT = rv.ClosedForm()
WHO = rv.Stragglers(rv.Uniform(cohort=4), share=0.5)


def models(algorithm, problem, states):
    """What every party would use after each round."""
    everyone = jnp.arange(problem.parties)
    return [deployed(algorithm, problem, jax.tree.map(jnp.asarray, s), everyone) for s in states]


# ------------------------------------------------------------------------------------------------ decentralised form

@pytest.mark.parametrize("setting", [(2, 2, 0.5), (1, 1, 1), (1.3, 0.6, 0.4)])
def test_centralised_anderson_is_decentralised_anderson(setting):
    """Whole trajectories, among them points that are undone; parties of different weights; a schedule of steps."""
    alpha, beta, gamma = setting
    make = [rv.splitting(rv.GD(2.0, steps=3), eta=rv.InversePower(3.0, 0.5), alpha=alpha, beta=beta, gamma=gamma,
                         decentralised=d) for d in (False, True)]
    algorithms = rv.Anderson(make[0], memory=4), rv.DecentralisedAnderson(make[1], memory=4)
    central, local = (trajectory(a, classification(), 25, rv.Full()) for a in algorithms)
    equal([s.server.inner.mean for s in central], [s.server.inner[0] for s in local], 1e-9)
    equal(*(models(a, classification(), s) for a, s in zip(algorithms, (central, local), strict=True)), 1e-9)
    equal([s.server.control for s in central], [s.server.slots.control for s in local], 1e-6)
    combined = [not bool(s.server.control.plain) for s in central]
    undone = [int(s.server.control.patience) for s in central][-1] > 1
    assert sum(combined) > 3
    print(setting, sum(combined), undone)
