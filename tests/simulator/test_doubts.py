"""Runs that teach little although their arguments fit: one warning each, with the remedy."""

import re
import warnings

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nightly
import resolvent as rv
from resolvent.errors import UnusedRepliesWarning

PARTIES = 4
QUADRATIC = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(2)] * PARTIES), jnp.ones((PARTIES, 2)))
FEDAVG = rv.fedavg(rv.SGD(0.1))
BYTES = np.random.default_rng(0).integers(0, 256, (40, 2, 2), np.uint8)
LABELS = np.arange(40) % 2
SCHEDULE = optax.cosine_decay_schedule(0.1, 100)
RESTARTS = r"begins anew in every round.*OptaxSolver\(schedule=\).*keep=True"
UNSCALED = r"8-bit integers.*divide them by 255"


def data_of(x, y=LABELS):
    return rv.FederatedData.from_arrays(np.split(x, 2), np.split(y, 2), validation=0.2, test=0.2)


def own_model(apply):
    return rv.models.from_functions(lambda key: jnp.zeros((4, 2)), apply)


def warnings_of(*args, **settings):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rv.simulate(*args, rounds=1, progress=False, **settings)
    return [str(warning.message) for warning in caught]


def robust(aggregator):
    return rv.robust(rv.solvers.GD(0.1), aggregator), QUADRATIC


def with_optimizer(optimizer, **settings):
    return rv.fedavg(rv.OptaxSolver(optimizer, steps=1, **settings)), QUADRATIC


def on_bytes(model, x=BYTES):
    return FEDAVG, model, data_of(x)


@nightly.parametrize(("make", "message"), [
    (lambda: robust(rv.aggregators.Krum(0.2)), r"Krum\(share=0.2\) .*none of 4 replies.*at least 5 parties.*median"),
    (lambda: with_optimizer(optax.adam(SCHEDULE)), RESTARTS),
    (lambda: on_bytes(rv.models.logistic(4, 2)), UNSCALED),
    (lambda: with_optimizer(optax.sgd(SCHEDULE), keep=True), None),
    (lambda: robust(rv.aggregators.Bulyan(0.2)), r"Bulyan\(share=0.2\) .*none of 4 replies.*at least 7 parties"),
    (lambda: robust(rv.aggregators.NearestNeighbourMixing(rv.aggregators.CoordinateMedian())), "at least 5 parties"),
    (lambda: robust(rv.aggregators.Bucketing(rv.aggregators.Krum(0.2))), "none of 2 replies"),
    (lambda: robust(rv.aggregators.Krum(0.0)), None),
    (lambda: with_optimizer(optax.inject_hyperparams(optax.sgd)(learning_rate=SCHEDULE)), RESTARTS),
    (lambda: with_optimizer(rv.solvers.traced_optimizer(optax.sgd, SCHEDULE)), RESTARTS),
    (lambda: with_optimizer(optax.inject_hyperparams(optax.adam)(learning_rate=0.1)), None),
    (lambda: on_bytes(own_model(lambda p, x: jnp.reshape(x, (len(x), -1)) / 255 @ p)), None),
    (lambda: on_bytes(rv.models.logistic(4, 2), (BYTES > 100).astype(np.uint8)), None),
], per_commit=4, others=nightly.WHEN_CHANGED)
def test_what_is_known_before_the_first_round(make, message):
    messages = warnings_of(*make())
    if message is None:
        assert messages == []
    else:
        text, = messages
        assert re.search(message, text)


def test_a_metric_that_is_defined_at_no_party():
    of_one_class = data_of(BYTES / 255, np.repeat([0, 1], 20))
    text, = warnings_of(FEDAVG, rv.models.logistic(4, 2), of_one_class, metrics=[rv.metrics.ROCAUC()])
    assert "the metric roc_auc is defined at no party" in text
    assert "validation and test samples" in text
    assert warnings_of(FEDAVG, rv.models.logistic(4, 2), data_of(BYTES / 255), metrics=[rv.metrics.ROCAUC()]) == []


@pytest.mark.parametrize(("algorithm", "participation", "message"), [
    (rv.fedavg(rv.solvers.GD(1e30, steps=3)), None,
     r"no reply was finite in 2 of 2 rounds, from round 1 on.*learning rate"),
    (rv.fedavg(rv.solvers.GD(0.1)), rv.participation.AvailabilityTable(np.zeros((1, PARTIES))),
     r"no reply arrived in any of 2 rounds.*participation=")])
def test_no_reply_counts(algorithm, participation, message):
    with pytest.warns(UnusedRepliesWarning, match=message) as caught:
        rv.simulate(algorithm, QUADRATIC, rounds=2, participation=participation, progress=False)
    assert len(caught) == 1
