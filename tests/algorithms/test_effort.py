"""Partial work of methods with a loop or a count of their own; that of the solvers is tested with the solvers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import resolvent as rv

KEY = jax.random.key(3)
SHARED = jnp.array([0.5, -1.0])


def oracle():
    return rv.problems.QuadraticProblem(jnp.diag(jnp.array([1.0, 3.0]))[None], jnp.array([[1.0, 2.0]])).oracle(0)


def work(algorithm, effort, state=SHARED, shared=SHARED):
    """The state, the reply and the number of gradient steps of a party."""
    party = jax.jit(algorithm.phases[0].party)
    state, reply, info = party(state, shared, oracle(), KEY, jnp.array(effort))
    return state, reply, float(info["steps"])


@pytest.mark.when_changed
@pytest.mark.parametrize(("effort", "steps"), [(1.0, 20), (0.5, 10), (0.05, 1), (0.0, 0)])
def test_pfedme_shortens_its_steps_on_the_envelope(effort, steps):
    """A straggler does what a party with fewer envelope steps does."""
    solver = rv.solvers.GD(0.1, steps=3)
    theta, w, count = work(rv.pfedme(solver, eta=0.03, steps=20), effort)
    assert count == 3 * steps
    if steps:
        expected = work(rv.pfedme(solver, eta=0.03, steps=steps), 1.0)
        np.testing.assert_array_equal(theta, expected[0])
        np.testing.assert_array_equal(w, expected[1])
    else:
        np.testing.assert_array_equal([theta, w], [SHARED, SHARED])


@pytest.mark.parametrize(("effort", "envelope_steps", "steps"), [
    (0.3, 1, 3), (0.3, 4, 10 + 2), (0.76, 4, 3 * 10 + 1), (1e-6, 4, 1), (1.0, 4, 40)])
def test_pfedme_shortens_the_last_solve_too(effort, envelope_steps, steps):
    """effort * R = 1.2 is one envelope step with all of the solver's work, and one with a fifth of it."""
    assert work(rv.pfedme(rv.solvers.GD(0.1, steps=10), eta=0.03, steps=envelope_steps), effort)[2] == steps


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_with_the_smallest_effort_makes_one_step(option):
    state = rv.scaffold(rv.solvers.GD(0.1)).init(SHARED, jnp.ones(1))._replace(control=jnp.array([0.2, 0.1]))
    control = jnp.array([0.3, -0.4])
    late, single = (work(rv.scaffold(rv.solvers.GD(0.1, steps=steps), option=option), effort, control, state)
                 for steps, effort in ((5, 1e-7), (1, 1.0)))
    jax.tree.map(np.testing.assert_array_equal, late, single)
    assert late[2] == 1


def test_scaffold_without_a_step_keeps_its_control_variate():
    algorithm, control = rv.scaffold(rv.solvers.GD(0.1, steps=5)), jnp.array([0.3, -0.4])
    after, reply, steps = work(algorithm, 0.0, control, algorithm.init(SHARED, jnp.ones(1)))
    assert steps == 0
    np.testing.assert_array_equal(after, control)
    np.testing.assert_array_equal([reply.update, reply.control_update], np.zeros((2, 2)))
