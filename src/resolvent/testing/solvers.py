"""The contract of local solvers: effort, the subproblem that they work on, and dtypes."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from resolvent.problem.quadratic import QuadraticProblem
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem
from resolvent.simulator.storage.tree_files import digest
from resolvent.testing.example import require

Run: TypeAlias = Callable[..., tuple[Array, Array]]

_SMALLEST_EFFORT = 2.0**-24  # of a straggler: 1 minus a draw from [0, 1) in float32


def check_solver(solver: LocalSolver) -> None:
    """Check that a local solver works on the subproblem that it gets, on a small quadratic problem.

    Without effort it returns the start and makes no step, with any positive effort it makes at least one, and with more
    effort not fewer. Full work lowers the objective, unless the solver adds noise. The centre, the weight and the
    linear term have an influence. The same key gives the same result, under ``jax.vmap`` too, and dtypes stay.

    Args:
        solver: the solver, with a learning rate that suits a curvature of 1.

    Raises:
        AssertionError: a property does not hold. The message says what was expected and what to do.

    Example:
        >>> check_solver(rv.SGD(0.1, batch_size=4, epochs=2))
    """
    name = type(solver).__name__
    with jax.enable_x64(True):
        run = jax.jit(partial(_solve, solver))
        _check_effort(run, name)
        _check_subproblem(run, solver.adds_noise, name)
        _check_batched(solver, run, name)
        work = np.asarray(solver.work(jnp.array([1, 10])))
        require(work.shape == (2,) and bool((work > 0).all()),
                f"{name}.work must return a positive number of samples for each party")
        require(isinstance(solver.limit_batches(1), LocalSolver), f"{name}.limit_batches must return a solver")
    for precision in (jnp.float32, jnp.float64):
        with jax.enable_x64(precision is jnp.float64):
            w, steps = jax.eval_shape(partial(_solve, solver))
        require(w.dtype == precision and jnp.issubdtype(steps.dtype, jnp.integer) and steps.shape == (),
                f"{name} returns {w.dtype} parameters and {steps.dtype} steps of shape {steps.shape} for "
                f"{jnp.dtype(precision).name} parameters: return parameters in the dtypes of the start, and the number "
                "of steps as one integer")


def _solve(solver: LocalSolver, effort: ArrayLike = 1.0, party: ArrayLike = 0, centre: ArrayLike = 0.0,
           weight: ArrayLike = 0.5, linear: ArrayLike = 0.0) -> tuple[Array, Array]:
    """The parameters and the number of steps, from a start that is not the centre."""
    subproblem, start = _subproblem(party, centre, weight, linear), _start()
    w, steps, _ = solver(subproblem, start, jax.random.key(0), jnp.asarray(effort, jnp.float32))
    return w, steps


def _start() -> Array:
    return jnp.array([1.0, -2.0, 0.5])


def _subproblem(party: ArrayLike, centre: ArrayLike, weight: ArrayLike, linear: ArrayLike) -> Subproblem:
    hessians = jnp.stack([jnp.diag(jnp.array([1.0, 0.5, 0.2])), jnp.eye(3)])
    problem = QuadraticProblem(hessians, jnp.array([[1.0, 0.3, -0.5], [0.0, 1.0, 2.0]]), sizes=jnp.array([7, 3]))
    oracle = problem.oracle(jnp.asarray(party))
    return Subproblem(oracle, jnp.full(3, centre, float), weight, jnp.full(3, linear, float))


def _check_effort(run: Run, name: str) -> None:
    w, steps = run(0.0)
    require(int(steps) == 0 and bool(jnp.array_equal(w, _start())),
            f"{name} makes {int(steps)} steps at the effort 0: return the start, and 0 steps")
    counts = [int(run(effort)[1]) for effort in (_SMALLEST_EFFORT, 0.3, 0.7, 1.0)]
    require(counts[0] >= 1, f"{name} makes no step at a positive effort: make at least one, such as ceil(effort * n)")
    require(counts == sorted(counts), f"{name} makes fewer steps with more effort: {counts}")
    require(digest(run(1.0)) == digest(run(1.0)), f"{name} gives two results with one key: draw every random number "
                                                  "from the key, and store nothing")


def _check_subproblem(run: Run, adds_noise: bool, name: str) -> None:
    base = np.asarray(run(1.0)[0])
    require(bool(np.isfinite(base).all()), f"{name} diverges on a quadratic with a curvature of 1: lower its step")
    # Each pair has gradients of opposite signs at the start, which also solvers that use the sign alone tell apart.
    pairs = {"center": ((1.0, 0, 3.0), (1.0,)), "weight": ((1.0, 0, 3.0, 2.0), (1.0, 0, 3.0, 0.0)),
             "linear": ((1.0, 0, 0.0, 0.5, -3.0), (1.0,))}
    for part, (first, second) in pairs.items():
        require(not np.allclose(run(*first)[0], run(*second)[0], rtol=1e-9),
                f"{name} gives the same result whatever {part} is: use the gradients of the subproblem "
                "(subproblem.grad, batch_smooth and pull), not those of its oracle")
    if not adds_noise:
        objective = _subproblem(0, 0.0, 0.5, 0.0).value
        before, after = float(objective(_start())), float(objective(jnp.asarray(base)))
        require(after < before, f"{name} does not lower the objective: {before:.4g} at the start, {after:.4g} after it")


def _check_batched(solver: LocalSolver, run: Run, name: str) -> None:
    batched = jax.jit(jax.vmap(lambda k: _solve(solver, 1.0, k)))(jnp.arange(2))
    for k in range(2):
        w, steps = run(1.0, k)
        require(int(batched[1][k]) == int(steps) and bool(np.allclose(batched[0][k], w, rtol=1e-9, atol=1e-9)),
                f"{name} gives another result under jax.vmap: each party has its own number of samples and of steps; "
                "use jax.lax loops")
