"""Minibatches of a site: who knows them solves for all rows from small steps, so that only the site does."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import nightly
import resolvent as rv
from resolvent.algorithms import keys
from resolvent.algorithms.method import local_solvers
from resolvent.federation.protocol.limits import Asked, Limits, reasons_to_refuse, rows_of_update
from resolvent.federation.protocol.refusals import Refusal
from resolvent.federation.site.own_batches import OwnBatches, with_own_batches
from resolvent.federation.site.party import first_state, party_step
from resolvent.federation.site.table import SiteTable
from resolvent.red_team.closed_forms import DenseUpdate, dense_updates, rows_of_units
from resolvent.red_team.recovery import InputScale, recovered_rows
from resolvent.tables.table_options import TableOptions

SECRET = b"a site's secret of 32 bytes ....."


@nightly.parametrize("samples", [9, 20, 1, 61], others=nightly.WHEN_CHANGED)
def test_minibatches_are_a_shuffled_epoch_of_nearly_equal_sizes(samples):
    rule = OwnBatches(rv.solvers.Shuffled(), jnp.arange(4, dtype=jnp.uint32))
    per_epoch = -(-samples // 10)
    draw = jax.jit(lambda rule, steps: rule.draw(keys.root_key(3), steps, jnp.array(samples), 10))
    positions, mask = map(np.asarray, draw(rule, jnp.arange(2 * per_epoch)))
    sizes = mask.sum(axis=1)
    assert sizes.max() - sizes.min() <= 1
    epochs = [[*positions[rows][mask[rows]]] for rows in np.split(np.arange(2 * per_epoch), 2)]
    assert [sorted(epoch) for epoch in epochs] == [[*range(samples)]] * 2
    assert epochs[0] != epochs[1] or samples == 1
    other = OwnBatches(rv.solvers.Shuffled(), jnp.arange(4, dtype=jnp.uint32) + 1)
    again, _ = draw(other, jnp.arange(2 * per_epoch))
    again = again[:per_epoch]
    assert not np.array_equal(np.asarray(again)[mask[:per_epoch]], epochs[0]) or samples == 1


def differenced(algorithm, solver, rounds=45):
    """The rows that come back from updates of small steps, by whoever knows the server's keys."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(36, 2)).astype(np.float32)
    data = rv.FederatedData.from_arrays([x], [rng.integers(0, 2, 36)], validation=0, test=0, classes=["0", "1"])
    problem = rv.problems.LearningProblem(rv.models.logistic(2, 2), data)
    model = problem.model.init(keys.initial_key(0))
    state = first_state(algorithm, problem, model, jax.random.key_data(keys.root_key(0)))
    weights, layers = np.zeros((rounds, 36)), []
    for t in range(rounds):
        key = keys.root_key(t)
        reply = party_step(algorithm, problem, state, model, key, jnp.ones(()), np.int32(t), phase=0)[1]
        layers += dense_updates(jax.tree.map(jnp.subtract, reply, model), 2)
        positions, mask = solver.batches.draw(key, jnp.arange(1), jnp.array(36), solver.batch_size)
        weights[t, np.asarray(positions)[np.asarray(mask)]] = 1 / int(mask.sum())
    inverse = np.linalg.pinv(weights)
    of_rows = DenseUpdate(np.einsum("nt,tjd->njd", inverse, [layer.weight for layer in layers]).reshape(-1, 2),
                          np.einsum("nt,tj->nj", inverse, [layer.bias for layer in layers]).reshape(-1))
    return len(recovered_rows(rows_of_units(of_rows), x, InputScale(np.ones(2, bool), x.std(axis=0))))


@pytest.mark.nightly
def test_all_rows_follow_from_small_steps_on_known_minibatches_and_none_from_those_of_the_site():
    """6 parameters and 18 rows an update: within the limit of parameters for each row that an update reads."""
    solver = rv.SGD(1e-4, batch_size=18, steps=1)
    assert differenced(rv.fedavg(solver), solver) == 36
    assert differenced(with_own_batches(rv.fedavg(solver), SECRET), solver) == 0


def test_what_has_random_numbers_but_no_minibatches_is_unchanged():
    algorithm = rv.fedavg(rv.solvers.DPSGD(0.1, batch_size=5, steps=1, noise_multiplier=1.0))
    assert jax.tree.structure(with_own_batches(algorithm, SECRET)) == jax.tree.structure(algorithm)
    adam = with_own_batches(rv.fedavg(rv.solvers.adam(0.1)), SECRET)
    assert isinstance(local_solvers(adam)[0].batches, OwnBatches)


@pytest.mark.parametrize(("solver", "effort", "rows"), [
    (rv.SGD(0.1, batch_size=5, steps=1), 1.0, 5), (rv.SGD(0.1, batch_size=7, steps=3), 1.0, 18),
    (rv.SGD(0.1, batch_size=7, steps=9), 1.0, 60),
    (rv.SGD(0.1, batch_size=5, steps=40), 1.0, 60), (rv.SGD(0.1, batch_size=5, steps=40), 1e-6, 5),
    (rv.SGD(0.1, batch_size=5, epochs=2), 1e-6, 60), (rv.SGD(0.1, batch_size=5, epochs=2, stop="step"), 1e-6, 5),
    (rv.solvers.GD(0.1, steps=1), 1e-6, 60), (rv.solvers.adam(0.1, batch_size=20, steps=2), 1.0, 40),
    (rv.SGD(0.1, batch_size=5, steps=4, batches=rv.solvers.Consecutive()), 1.0, 5)])
def test_the_rows_of_an_update_are_those_of_its_minibatches(solver, effort, rows):
    assert rows_of_update(rv.fedavg(solver), 60, effort) == rows


def test_the_smallest_minibatch_of_an_epoch_counts():
    def reasons(batch_size, samples):
        return [*reasons_to_refuse(Limits(), Asked(
            method="fedavg", algorithm=rv.fedavg(rv.SGD(0.1, batch_size=batch_size)), rounds=1, samples=samples))]

    assert reasons(10, 61) == reasons(6, 21) == reasons(5, 60) == []
    assert reasons(5, 61) == reasons(4, 60) == ["min_batch"]


def test_a_class_of_few_training_rows_does_not_take_part():
    """Its part of an update is a sum over these rows."""
    frame = pd.DataFrame({"age": np.arange(60.0) % 7, "ill": ["yes", "no"] * 26 + ["perhaps"] * 8})
    outcomes = set()
    for seed in range(12):
        table = SiteTable(frame, TableOptions("site", "ill", seed=seed), "aachen", 0)
        trained = table.report().labels[0].classes["perhaps"]
        expected = pytest.raises(Refusal, match="of which") if 0 < trained < 5 else nullcontext()
        with expected:
            SiteTable(frame, TableOptions("site", "ill", seed=seed), "aachen", 0, Limits())
        outcomes.add(0 < trained < 5)
    assert outcomes == {True, False}
