"""Own parts under faults: those of the library pass, and parts with a state of their own do not."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import resolvent as rv
from resolvent.testing.faults import damage, torture

PROBLEM = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(2)] * 3), jnp.arange(6.0).reshape(3, 2))
GD = rv.solvers.GD(0.1, steps=2)


@pytest.mark.when_changed
def test_methods_with_states_pass():
    assert 0 <= torture(rv.scaffold(GD), PROBLEM, rounds=4, cases=6) <= 3


@pytest.mark.when_changed
def test_a_metric_that_counts_its_calls_is_found():
    data, calls = rv.datasets.digits(parties=2), itertools.count()
    metric = rv.metrics.from_function(lambda labels, predictions: float(next(calls)), name="calls",
                                      higher_is_better=True)
    with pytest.raises(AssertionError, match=r"stopped after round .* has other metrics"):
        torture(rv.fedavg(rv.SGD(0.1, steps=1)), rv.models.logistic(64, 10), data, rounds=3, cases=2, metrics=[metric])


def test_a_callback_that_ends_the_run_is_found():
    with pytest.raises(AssertionError, match="ends after round 1 of 3 without a fault"):
        torture(rv.fedavg(GD), PROBLEM, rounds=3, cases=1, on_evaluation=lambda event: event.stop("enough"))


def test_damage_says_what_it_did(tmp_path):
    for number in range(16):
        files = [tmp_path / name for name in ("a", "b")]
        for path in files:
            path.write_bytes(path.name.encode() * 50)
        before = [path.read_bytes() for path in files]
        text, names = damage(np.random.default_rng(number), files, tmp_path)
        after = [path.read_bytes() if path.exists() else None for path in files]
        assert before != after or "swapped" in text or "zero" in text
        assert any(name in text for name in names)
