"""The contract that every algorithm passes, with no branching on names: ``check_algorithm(make)``.

``make(solver)`` builds the algorithm. Each check is a function of its own, so that a failure says which clause broke.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

import resolvent as rv
from resolvent.algorithms import keys
from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation import Full, Participation, Stragglers, Uniform
from resolvent.problem.learning import LearningProblem
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.simulate.engine import initial, run_chunk
from resolvent.simulate.states import Federation
from resolvent.simulate.tree_files import digest
from twin import python_rounds

Make = Callable[[LocalSolver], Algorithm]
ROUNDS = 3
SIZES = (1, 5, 9, 4, 13, 7, 6)  # party 0 has one sample; minibatches of 4 leave remainders


class Present(Participation):
    """Another participation's cohort, or nobody where ``on`` is zero: a number, so that both are one program."""

    inner: Participation
    on: ArrayLike = 1.0

    def capacity(self, parties):
        return self.inner.capacity(parties)

    def shares(self, sizes):
        return self.inner.shares(sizes)

    def __call__(self, key, sizes):
        cohort = self.inner(key, sizes)
        return replace(cohort, alive=cohort.alive & (jnp.asarray(self.on) > 0))

    def nobody(self):
        return eqx.tree_at(lambda who: who.on, self, 0.0)


# One program for every clause: compiling is what they cost.
WHO = Present(Stragglers(Uniform(cohort=4), share=0.5))


def solver(learning_rate: Any = 0.1) -> LocalSolver:
    return rv.SGD(learning_rate, batch_size=4, epochs=2)


def init(key: Any) -> Any:
    """The same numbers in float32 and float64, which a random draw would not give."""
    def layer(*shape: int) -> Any:
        return {"weight": jnp.cos(jnp.arange(12.0)).reshape(shape) / 2}
    return {"layer 0": layer(4, 3), "layer 1": layer(3, 4) | {"bias": jnp.zeros(3)}}


def apply(params: Any, x: Any) -> Any:
    first, second = params["layer 0"], params["layer 1"]
    return jnp.tanh(x @ first["weight"].T) @ second["weight"].T + second["bias"]


def problem(sizes: tuple[int, ...] = SIZES) -> LearningProblem:
    """A small classification with a nested tree of parameters."""
    rng = np.random.default_rng(0)
    x = [rng.normal(k / 3, 1, size=(n, 3)) for k, n in enumerate(sizes)]
    y = [rng.integers(0, 3, n) for n in sizes]
    data = rv.FederatedData.from_arrays(x, y, validation=0, test=0, classes=["0", "1", "2"])
    return LearningProblem(rv.models.from_functions(init, apply), data, block=4)


def run(algorithm: Algorithm, problem: LearningProblem, participation: Participation = WHO, *, rounds: int = ROUNDS,
        scheduler: Any = "sequential", start: Federation | None = None, first: int = 0) -> Federation:
    fresh = initial(algorithm, problem, participation, jnp.array(7)) if start is None else start
    state = jax.tree.map(jnp.array, fresh)  # a copy: the engine takes the buffers
    return run_chunk(algorithm, problem, participation, state, jnp.array(7), jnp.array(first), jnp.array(rounds),
                     capacity=4, record=("steps",), scheduler=scheduler).state


def close(a: Any, b: Any, tolerance: float) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance)


def stacked(parties: list[Any]) -> Any:
    return jax.tree.map(lambda *rows: jnp.stack(rows), *parties)


def check_pure(make: Make) -> None:
    """The same inputs give the same result, and are left as they were."""
    algorithm, p = make(solver()), problem()
    state = initial(algorithm, p, WHO, jnp.array(7))
    before = digest((algorithm, p, state))
    first = run(algorithm, p, start=state)
    assert digest((algorithm, p, state)) == before
    assert digest(run(algorithm, p, start=state)) == digest(first)


def check_moves_on(make: Make) -> None:
    """A round changes something, and rounds in one chunk or in two are the same rounds."""
    algorithm, p = make(solver()), problem()
    state = initial(algorithm, p, WHO, jnp.array(7))
    whole = run(algorithm, p, start=state)
    assert digest(whole) != digest(state)
    half = run(algorithm, p, start=state, rounds=1)
    assert digest(run(algorithm, p, start=half, rounds=ROUNDS - 1, first=1)) == digest(whole)


def check_compiles_once(make: Make) -> None:
    """Neither a second call, nor a new float, nor another number of rounds compiles again."""
    p = problem()
    run(make(solver(0.1)), p)
    compiled = run_chunk._cache_size()
    run(make(solver(0.1)), p)
    changed = jax.tree.map(lambda leaf: leaf * 0.5 if isinstance(leaf, float) else leaf, make(solver(0.1)))
    run(changed, p, rounds=2)
    assert run_chunk._cache_size() == compiled


def check_vmaps(make: Make) -> None:
    """A sweep over a hyperparameter is one vmap."""
    p = problem()

    def swept(rate: Any) -> Any:
        algorithm = make(solver(rate))
        state = initial.__wrapped__(algorithm, p, WHO, jnp.array(7))
        return run_chunk.__wrapped__(algorithm, p, WHO, state, jnp.array(7), jnp.array(0), jnp.array(ROUNDS),
                                     capacity=4, record=(), scheduler="sequential").state

    together = jax.eval_shape(jax.vmap(swept), jnp.zeros(2))
    alone = jax.eval_shape(swept, jnp.zeros(()))
    assert jax.tree.map(lambda a: (2, *a.shape), alone) == jax.tree.map(lambda a: a.shape, together)


def check_twin(make: Make) -> None:
    """Sequential, in a queue of two lanes and as a plain Python loop: the same whole trajectory, in float64.

    With a sampled cohort and stragglers; absent parties keep their state to the bit.
    """
    who = WHO
    with jax.enable_x64(True):
        algorithm, p = make(solver()), problem()
        history = python_rounds(algorithm, p, who, 7, ROUNDS)
        for scheduler in ("sequential", rv.schedulers.Queue(2)):
            state = initial(algorithm, p, who, jnp.array(7))
            close((state.server, state.parties), (history[0][0], stacked(history[0][1])), 1e-12)
            for t in range(ROUNDS):
                before = jax.tree.map(np.asarray, state.parties)
                state = run(algorithm, p, who, start=state, rounds=1, first=t, scheduler=scheduler)
                server, parties = history[t + 1]
                close((state.server, state.parties), (server, stacked(parties)), 1e-11)
                key = keys.cohort_key(keys.round_key(keys.root_key(7), jnp.array(t)))
                absent = np.setdiff1d(np.arange(len(SIZES)), np.asarray(who(key, p.sizes).index))
                for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(state.parties), strict=True):
                    np.testing.assert_array_equal(old[absent], np.asarray(new)[absent])


def check_dtypes(make: Make) -> None:
    """float32 stays float32 and float64 float64, and the two agree."""
    single = run(make(solver()), problem())
    with jax.enable_x64(True):
        double = run(make(solver()), problem())
    for a, b in zip(jax.tree.leaves(single), jax.tree.leaves(double), strict=True):
        if jnp.issubdtype(a.dtype, jnp.floating):
            assert (a.dtype, b.dtype) == (jnp.float32, jnp.float64)
    close(single, double, 1e-3)


def check_small(make: Make) -> None:
    """One party, with one sample: everything stays finite, and what it deploys is a model."""
    p = problem((1,))
    algorithm = make(solver())
    state = run(algorithm, p, Full())
    message = algorithm.model_message(state.server, jnp.array(0))
    row = jax.tree.map(lambda leaf: leaf[0], state.parties)
    model = algorithm.personal_model(row, message, p.oracle(jnp.array(0)))
    like = p.init(jax.random.key(0))
    assert jax.tree.structure(model) == jax.tree.structure(like)
    for leaf, expected in zip(jax.tree.leaves(model), jax.tree.leaves(like), strict=True):
        assert leaf.shape == expected.shape
        assert np.isfinite(np.asarray(leaf)).all()


def check_nobody(make: Make) -> None:
    """A round in which nobody takes part changes nothing."""
    algorithm, p = make(solver()), problem()
    state = initial(algorithm, p, WHO, jnp.array(7))
    assert digest(run(algorithm, p, WHO.nobody(), start=state)) == digest(state)


CHECKS = (check_pure, check_moves_on, check_compiles_once, check_vmaps, check_twin, check_dtypes, check_small,
          check_nobody)


def check_algorithm(make: Make) -> None:
    """All clauses."""
    for check in CHECKS:
        partial(check, make)()
