"""Optax optimizers as pytrees: numbers are traced values, the rest is part of the program."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nightly
import resolvent as rv
from resolvent.problem.solvers.optimizers import as_optimizer, named_optimizer

START, GRADIENT = {"w": jnp.array([1.0, -2.0])}, {"w": jnp.array([0.3, 0.1])}


def step(optimizer):
    transformation = optimizer.build()
    return transformation.update(GRADIENT, transformation.init(START), START)[0]


def solve(solver):
    problem = rv.problems.QuadraticProblem(jnp.eye(2)[None], jnp.ones((1, 2)))
    sub = rv.problems.Subproblem(problem.oracle(jnp.array(0)), jnp.zeros(2))
    return solver(sub, jnp.zeros(2), jax.random.key(0), jnp.array(1.0))[0]


@pytest.mark.when_changed
@nightly.parametrize("make", [
    lambda rate: rv.solvers.adam(rate, steps=3), lambda rate: rv.solvers.momentum(rate, steps=3),
    lambda rate: rv.solvers.optax_solver("adamw", rate, settings={"weight_decay": rate, "nesterov": True}, steps=3),
    lambda rate: rv.OptaxSolver(rv.solvers.traced_optimizer(optax.lion, rate), steps=3),
], ids=["adam", "momentum", "by name", "traced"], others=nightly.WHEN_CHANGED)
def test_another_rate_is_the_same_program_and_a_sweep_is_one_vmap(make):
    traces = []

    @jax.jit
    def run(solver):
        traces.append(solver)
        return solve(solver)

    separate = jnp.stack([run(make(rate)) for rate in (0.1, 0.2)])
    assert len(traces) == 1
    np.testing.assert_allclose(jax.vmap(lambda rate: solve(make(rate)))(jnp.array([0.1, 0.2])), separate, rtol=1e-5)


def test_a_plain_optimizer_is_part_of_the_program_and_equal_to_itself():
    traces = []

    @jax.jit
    def run(optimizer):
        traces.append(optimizer)
        return step(optimizer)

    plain = optax.adamw(0.1)
    results = [run(as_optimizer(o)) for o in (plain, plain, optax.adamw(0.2))]
    assert len(traces) == 2
    np.testing.assert_array_equal(results[0]["w"], step(as_optimizer(plain))["w"])
    assert float(jnp.abs(results[2]["w"] - results[0]["w"]).max()) > 0


def test_numbers_are_leaves_and_other_arguments_are_options():
    optimizer = rv.solvers.traced_optimizer(optax.sgd, 0.1, momentum=0.9, nesterov=True)
    assert jax.tree.leaves(optimizer) == [0.1, 0.9]
    assert optimizer.options == (("nesterov", True),)
    assert as_optimizer(optimizer) is optimizer
    np.testing.assert_allclose(step(optimizer)["w"], step(as_optimizer(optax.sgd(0.1, 0.9, nesterov=True)))["w"])


@pytest.mark.when_changed
def test_hyperparams_in_optaxs_own_state_work_too():
    injected = optax.inject_hyperparams(optax.adam)(learning_rate=0.1)
    expected = solve(rv.solvers.adam(0.1, steps=3))
    np.testing.assert_allclose(solve(rv.OptaxSolver(injected, steps=3)), expected, rtol=1e-5)


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: rv.OptaxSolver(optax.adam), ValueError, r"optimizer.* call it, adam\("),
    (lambda: rv.OptaxSolver("adam"), ValueError, "optimizer='adam'. must be an? "),
    (lambda: rv.solvers.traced_optimizer(optax.adam, rate=0.1), ValueError, "adam .* it takes learning_rate, b1"),
    (lambda: named_optimizer("adamm", 0.1), rv.InputError, r"optimizer 'adamm'.*did you mean 'adam"),
    (lambda: named_optimizer("lbfgs", 0.1), rv.InputError, "optimizer 'lbfgs'"),
    (lambda: named_optimizer("adam", 0.1, {"beta": 0.1}), rv.InputError, "'beta'"),
    (lambda: rv.solvers.optax_solver("adam", 0.0), ValueError, "learning_rate=0.0"),
])
def test_wrong_optimizers_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
