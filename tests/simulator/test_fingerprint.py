"""Fingerprints: equal for equal runs in any process, different as soon as a number, a type or a function differs."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import resolvent as rv
from resolvent.simulator.checkpoint.identity import fingerprint_of

SOLVER = rv.SGD(0.1, batch_size=4, epochs=2)


def adam(learning_rate):
    return rv.OptaxSolver(optax.adam(learning_rate), batch_size=4, epochs=1)


def scaled(factor):
    return lambda x: factor * x


def algorithm():
    return rv.fedplus(adam(1e-3), rv.penalties.L2Norm())


EQUAL = {
    "algorithm": algorithm,
    "function": lambda: jax.nn.relu,
    "closure": lambda: scaled(2.0),
    "model": lambda: rv.models.logistic(3, 2),
    "data": lambda: rv.datasets.synthetic(parties=3, samples=4, features=2),
    "random key": lambda: jax.random.key(3),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_values_have_equal_fingerprints(name):
    assert fingerprint_of(EQUAL[name]()) == fingerprint_of(EQUAL[name]())


@pytest.mark.parametrize(("a", "b"), [
    (rv.fedavg(SOLVER), rv.fedprox(SOLVER, mu=0.1)),
    (rv.fedprox(SOLVER, mu=0.1), rv.fedprox(SOLVER, mu=0.2)),
    (adam(1e-3), adam(2e-3)),
    (rv.participation.Uniform(3), rv.participation.BySize(3)),
    (scaled(2.0), scaled(3.0)),
    (jax.nn.relu, jax.nn.gelu),
    (partial(np.sum, axis=0), partial(np.sum, axis=1)),
    (jnp.ones(2), jnp.ones(2, jnp.int32)),
    (jnp.ones((2, 1)), jnp.ones((1, 2))),
    (1, 1.0),
    (("ab", "c"), ("a", "bc")),
    ({"a": 1}, {"b": 1}),
])
def test_different_values_have_different_fingerprints(a, b):
    assert fingerprint_of(a) != fingerprint_of(b)


@pytest.mark.when_changed
def test_fingerprints_do_not_depend_on_the_process():
    command = ("from test_fingerprint import algorithm; "
               "from resolvent.simulator.checkpoint.identity import fingerprint_of; "
               "print(fingerprint_of(algorithm()))")
    run = subprocess.run([sys.executable, "-c", command], cwd=Path(__file__).parent, capture_output=True, text=True,
                         env=os.environ | {"PYTHONHASHSEED": "7"}, check=True)
    assert run.stdout.strip() == fingerprint_of(algorithm())
