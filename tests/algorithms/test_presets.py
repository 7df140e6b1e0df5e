"""Presets refuse arguments that they would not use, and build the same algorithm without them."""

import equinox as eqx
import numpy as np
import pytest

import resolvent as rv

SOLVER = rv.SGD(0.2, batch_size=4, epochs=3)


@pytest.mark.parametrize(("build", "message"), [
    (lambda: rv.fedmix(SOLVER, inner=rv.fedavg(SOLVER), learning_rate=0.1), "learning_rate=0.1"),
    (lambda: rv.dgd(SOLVER, alpha=1.0), "solver"),
    (lambda: rv.dcgd(SOLVER, alpha=1), "solver"),
    (lambda: rv.diana(alpha=1.0, repeats=3), "repeats"),
    (lambda: rv.splitting(SOLVER, local_step="gradient", eta=1.0), "eta=1.0"),
    (lambda: rv.perfedavg(SOLVER, variant="FO", delta=1e-3), "delta=0.001"),
    (lambda: rv.perfedavg(SOLVER, variant="exact", delta=1e-3), "delta=0.001"),
], ids=["fedmix", "dgd", "dcgd", "diana", "splitting", "first order", "exact"])
def test_an_argument_without_effect_is_refused(build, message):
    with pytest.raises(rv.InputError, match=f"{message}.*leave"):
        build()


@pytest.mark.parametrize("alpha", [0.5, np.array([1.0, 1.0])], ids=["number", "array"])
def test_mixtures_need_a_solver(alpha):
    with pytest.raises(rv.InputError, match="dgd needs a solver"):
        rv.dgd(alpha=alpha)


@pytest.mark.parametrize(("preset", "expected"), [
    (lambda: rv.fedmix(SOLVER), lambda: rv.fedmix(SOLVER, learning_rate=0.1)),
    (lambda: rv.dgd(SOLVER), lambda: rv.dgd(SOLVER, repeats=20)),
    (lambda: rv.splitting(SOLVER), lambda: rv.splitting(SOLVER, eta=1.0)),
    (lambda: rv.perfedavg(SOLVER), lambda: rv.perfedavg(SOLVER, delta=1e-3)),
], ids=["fedmix", "dgd", "splitting", "perfedavg"])
def test_documented_defaults(preset, expected):
    assert eqx.tree_equal(preset(), expected())
