"""Parties that take part at different rates: the bias of FedAvg in closed form, and MIFA, FedVARP and FedAU without it.

All losses are |w - b_k|^2/2, so that everything is linear: after E steps of rate s a party's model is
b_k + r (w - b_k), with r = (1 - s)^E, and FedAvg's next model is r w + (1 - r) (mean of b_k over the cohort).
"""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.algorithms import keys
from resolvent.algorithms.participation.rules import draw_cohort
from resolvent.simulator.engine.rounds import record_rounds, run_rounds

TARGETS = np.array([[4.0, 0.0], [0.0, 1.0], [-2.0, 3.0], [1.0, -6.0]])
RATES = np.array([0.9, 0.5, 0.2, 0.1])
SOLVER = rv.solvers.GD(0.1, steps=2)
R = 0.9**2
SEED = 2


def problem():
    return rv.problems.QuadraticProblem(jnp.stack([jnp.eye(2)] * 4), jnp.asarray(TARGETS))


def independent():
    return rv.participation.Dropout(1 - RATES, rv.participation.Full("uniform"))


def correlated():
    """The same rates, with intervals that are three times as long."""
    on = RATES * (1 - RATES) / 3
    return rv.participation.MarkovOnOff(on=on / (1 - RATES), off=on / RATES, inner=rv.participation.Full("uniform"))


def expected_weights():
    """E[alive_k / number of alive parties | there is one], over all cohorts."""
    total, weights = 0.0, np.zeros(4)
    for alive in np.array(list(product([0, 1], repeat=4)))[1:]:
        probability = np.prod(np.where(alive, RATES, 1 - RATES))
        total, weights = total + probability, weights + probability * alive / alive.sum()
    return weights / total


def mean_model(algorithm, participation, rounds=40_000, chunk=500):
    """The mean of the shared model over rounds after a first tenth, from the means of short runs."""
    def step(state, t):
        after = run_rounds(algorithm, problem(), participation, state=state, seed=SEED, start=t)
        return after, algorithm.server_model(after.server)

    with jax.enable_x64(True):
        first = run_rounds(algorithm, problem(), participation, seed=SEED)
        models = jax.jit(lambda state: jax.lax.scan(step, state, jnp.arange(1, rounds))[1])(first)
    return np.asarray(models)[rounds // 10:].mean(axis=0)


@pytest.mark.nightly
def test_the_bias_of_fedavg_is_that_of_the_closed_form():
    """Its mean model is sum_k E[weight_k] b_k: with equal curvatures, for any number of local steps."""
    limit = expected_weights() @ TARGETS
    measured = mean_model(rv.fedavg(SOLVER), independent())
    np.testing.assert_allclose(measured, limit, atol=0.03)
    assert np.linalg.norm(limit - TARGETS.mean(axis=0)) > 1.7  # the bias


@nightly.parametrize(("name", "participation"), [
    ("fedau", independent), ("mifa", independent), ("mifa", correlated)], per_commit=0)
def test_remedies_have_no_bias(name, participation):
    """The mean model is the minimiser, to 5 % of FedAvg's bias. MIFA's is also if the availability is a Markov chain,
    in which the weights of FedAU leave a part of the bias that decreases with the step."""
    make = {"mifa": lambda: rv.mifa(SOLVER, server_rate=0.2),
            "fedau": lambda: rv.fedau(SOLVER, cutoff=1000, server_rate=0.2)}[name]
    measured = mean_model(make(), participation())
    np.testing.assert_allclose(measured, TARGETS.mean(axis=0), atol=0.09)


def cohorts(rounds):
    draw = jax.jit(lambda t: draw_cohort(correlated(), jnp.ones(4, jnp.int32), keys.root_key(SEED), t)[1].alive)
    return np.array([draw(jnp.array(t)) for t in range(rounds)])


def python_mifa(alive, rate, corrected):
    w, memory = np.zeros(2), np.zeros((4, 2))
    for row in alive:
        if row.any():
            before = memory.copy()
            memory[row] = (1 - R) * (TARGETS[row] - w)
            step = before.mean(0) + (memory - before)[row].mean(0) if corrected else memory.mean(0)
            w = w + rate * step
    return w


def python_fedau(alive, rate, cutoff):
    """Algorithm 2 of the paper, round by round, in rounds with a reply."""
    w, weights = np.zeros(2), np.ones(4)
    count, length = np.zeros(4, int), np.zeros(4, int)
    alive = alive[alive.any(axis=1)]
    for t, row in enumerate(alive):
        if t > 0:
            for k in range(4):
                length[k] += 1
                if alive[t - 1, k] or length[k] == cutoff:
                    weights[k] = length[k] if count[k] == 0 else (count[k] * weights[k] + length[k]) / (count[k] + 1)
                    count[k], length[k] = count[k] + 1, 0
        w = w + rate * np.sum(((weights * 0.25)[:, None] * (1 - R) * (TARGETS - w))[row], axis=0)
    return w


@pytest.mark.when_changed
@pytest.mark.parametrize(("algorithm", "twin"), [
    (rv.mifa(SOLVER, server_rate=0.5), lambda alive: python_mifa(alive, 0.5, False)),
    (rv.fedvarp(SOLVER, server_rate=0.5), lambda alive: python_mifa(alive, 0.5, True)),
    (rv.fedau(SOLVER, cutoff=7, server_rate=0.1), lambda alive: python_fedau(alive, 0.1, 7)),
], ids=["MIFA", "FedVARP", "FedAU"])
def test_methods_are_those_of_their_papers(algorithm, twin):
    with jax.enable_x64(True):
        final = run_rounds(algorithm, problem(), correlated(), seed=SEED, rounds=60,
                           state=None)
        first = problem().init(keys.initial_key(SEED))
        np.testing.assert_allclose(first, 0)
        np.testing.assert_allclose(algorithm.server_model(final.server), twin(cohorts(60)), rtol=1e-11)


@pytest.mark.nightly
def test_mifa_with_all_parties_is_fedavg():
    mifa, varp, fedavg = (run_rounds(algorithm, problem(), rounds=5).server for algorithm in (
        rv.mifa(SOLVER), rv.fedvarp(SOLVER), rv.fedavg(SOLVER)))
    np.testing.assert_allclose(mifa.model, fedavg, rtol=1e-5)
    np.testing.assert_allclose(varp.model, fedavg, rtol=1e-5)


@pytest.mark.when_changed
def test_the_weights_of_fedau_are_recorded():
    record = record_rounds(rv.fedau(SOLVER), problem(), independent(), rounds=3, record=("omega",)).record
    assert np.asarray(record.party["omega"]).shape == (3, 4)
