"""The clauses of the contract: properties that every algorithm has, whatever it computes.

No clause looks at the name of an algorithm. Compiling takes nearly all of the time, so the clauses of one algorithm
share their programs and their states: a queue of two lanes and the Python loop, both in float64. Only ``check_dtypes``
and ``check_single_sample`` compile others, the sequential scheduler in float32.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, PyTree
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm, Replies
from resolvent.algorithms.participation import Full
from resolvent.algorithms.round import reply_shapes, stacked_replies
from resolvent.problem.learning import LearningProblem
from resolvent.problem.problem import Problem
from resolvent.simulate.rounds import compiled_programs, initial_state, run_rounds
from resolvent.simulate.schedulers import Queue
from resolvent.simulate.states import Federation
from resolvent.simulate.tree_files import digest
from resolvent.testing.example import (
    SIZES,
    Make,
    assert_close,
    example_participation,
    example_problem,
    example_solver,
    require,
    without_parties,
)
from resolvent.testing.python_loop import draw_cohort, python_rounds, server_step

__all__ = [
    "CHECKS", "check_algorithm", "check_compiles_once", "check_declarations", "check_dtypes", "check_empty_round",
    "check_half_precision", "check_models", "check_python_loop", "check_repeatable", "check_rounds_continue",
    "check_single_sample", "check_sweep",
]

ROUNDS = 3
SEED = 7
PARTICIPATION = example_participation()


class _Trial:
    """One algorithm on the example problem, with the results that several clauses read."""

    def __init__(self, make: Make) -> None:
        self.make = make

    @cached_property
    def single(self) -> tuple[Algorithm, LearningProblem, Federation]:
        """The algorithm, the problem and the first state in float32."""
        with jax.enable_x64(False):
            algorithm, problem = self.make(example_solver()), example_problem()
            return algorithm, problem, initial_state(algorithm, problem, PARTICIPATION, SEED)

    @cached_property
    def double(self) -> tuple[Algorithm, LearningProblem, Federation]:
        """The algorithm, the problem and the first state in float64."""
        with jax.enable_x64(True):
            algorithm, problem = self.make(example_solver()), example_problem()
            return algorithm, problem, initial_state(algorithm, problem, PARTICIPATION, SEED)

    @cached_property
    def final(self) -> Federation:
        """The state after all rounds, in float64 with a queue of two lanes."""
        return self.run()

    @cached_property
    def trajectory(self) -> list[Federation]:
        """The state before the first round and after each round, in float64 by the Python loop."""
        algorithm, problem, _ = self.double
        with jax.enable_x64(True):
            return python_rounds(algorithm, problem, PARTICIPATION, SEED, ROUNDS)

    def run(self, state: Federation | None = None, *, algorithm: Algorithm | None = None, start: int = 0,
            rounds: int = ROUNDS, empty: bool = False) -> Federation:
        """The state after some rounds, in float64 with a queue of two lanes."""
        own_algorithm, problem, first = self.double
        participation = without_parties(PARTICIPATION) if empty else PARTICIPATION
        with jax.enable_x64(True):
            return run_rounds(own_algorithm if algorithm is None else algorithm, problem, participation,
                              state=first if state is None else state, seed=SEED, start=start, rounds=rounds,
                              scheduler=Queue(2))


@lru_cache(maxsize=1)
def _trial(make: Make) -> _Trial:
    return _Trial(make)


def check_repeatable(make: Make) -> None:
    """The same arguments give the same states bit for bit, and no argument changes."""
    trial = _trial(make)
    before = digest(trial.double)
    first, second = digest(trial.final), digest(trial.run())
    require(first == second, "two runs from one state differ: draw every random number from the key that the party or "
                             "the server function gets, and store nothing on the algorithm")
    require(digest(trial.double) == before, "a run has changed its arguments: return new states, and leave the arrays "
                                            "of the algorithm and of the old states as they are")


def check_rounds_continue(make: Make) -> None:
    """A round changes the state, keeps its types, and 3 rounds in one call are 1 round and 2 more."""
    trial = _trial(make)
    _, _, first = trial.double
    require(digest(trial.final) != digest(first), "3 rounds have changed neither the server's state nor a party's: "
                                                  "return the new states from the phases")
    require(_types(trial.final) == _types(first), "the shapes or dtypes of the state change in a round, so that every "
                                                  "round compiles: cast counters and numbers to the dtype of the "
                                                  "first state")
    later = trial.run(trial.run(rounds=1), start=1, rounds=ROUNDS - 1)
    require(digest(later) == digest(trial.final), "a run that was interrupted differs from one that was not: keep all "
                                                  "that the next round needs in the server's and the parties' states")


def check_compiles_once(make: Make) -> None:
    """Neither a second call, nor other numbers, nor another number of rounds compiles again."""
    trial = _trial(make)
    trial.run()
    before = compiled_programs()
    with jax.enable_x64(True):
        again = make(example_solver())
        other = jax.tree.map(lambda leaf: leaf * 0.5 if isinstance(leaf, float) else leaf, make(example_solver()))
    trial.run(algorithm=again)
    trial.run(algorithm=other, rounds=2)
    after = compiled_programs()
    require(after == before, "the same algorithm built again, or one with other numbers, compiles again: numbers are "
                             "fields, static fields are hashable and compare by value, no field is a lambda, and "
                             "an optax optimizer is built with rv.solvers.traced_optimizer")


def check_sweep(make: Make) -> None:
    """A sweep over a hyperparameter is one ``jax.vmap``."""
    trial = _trial(make)
    _, problem, first = trial.double

    def run(learning_rate: ArrayLike) -> Federation:
        algorithm = make(example_solver(learning_rate))
        state = initial_state(algorithm, problem, PARTICIPATION, SEED)
        return run_rounds(algorithm, problem, PARTICIPATION, state=state, seed=SEED, rounds=1)

    with jax.enable_x64(True):
        swept = jax.eval_shape(jax.vmap(run), jnp.zeros(2))
    require(jax.tree.map(lambda leaf: leaf.shape, swept) == jax.tree.map(lambda leaf: (2, *leaf.shape), first),
            "a sweep of 2 learning rates does not give 2 states: use jax.numpy on hyperparameters, not Python's if, "
            "float() or NumPy")


def check_python_loop(make: Make) -> None:
    """A plain Python loop over the parties, one after the other, gives the same states after every round.

    In float64, with a sampled cohort and stragglers, against a queue of two lanes; ``check_dtypes`` compares with the
    sequential scheduler. Parties outside the cohort keep their state bit for bit.
    """
    trial = _trial(make)
    _, problem, state = trial.double
    advice = ("the simulator and a Python loop over the parties differ: a party function must give the same result "
              "under jax.vmap and depend on nothing but its arguments")
    with jax.enable_x64(True):
        assert_close(state, trial.trajectory[0], 1e-12, advice)
        for t, expected in enumerate(trial.trajectory[1:]):
            before = state
            state = trial.run(state, start=t, rounds=1)
            assert_close(state, expected, 1e-11, advice)
            _, cohort = draw_cohort(PARTICIPATION, problem.sizes, SEED, t)
            absent = np.setdiff1d(np.arange(len(SIZES)), np.asarray(cohort.index))
            require(digest(_rows(state.parties, absent)) == digest(_rows(before.parties, absent)),
                    "the state of a party outside the cohort has changed: party states have leaves [N, ...], and a "
                    "phase writes the cohort's rows only")


def check_dtypes(make: Make) -> None:
    """float32 stays float32, float64 stays float64, and the two results agree to 1e-3."""
    trial = _trial(make)
    double = trial.trajectory[-1]
    algorithm, problem, first = trial.single
    with jax.enable_x64(False):
        single = run_rounds(algorithm, problem, PARTICIPATION, state=first, seed=SEED, rounds=ROUNDS)
    for precision, state in ((jnp.float32, single), (jnp.float64, double)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            _require_dtype(path, leaf, precision)
    assert_close(single, double, 1e-3, "float32 (sequential scheduler) and float64 (Python loop) differ: look for sums "
                                       "that cancel, or for decisions that depend on rounding")


def check_models(make: Make) -> None:
    """The personal model of a party, and the server's model if there is one, are models of the problem."""
    algorithm, problem, state = _trial(make).double
    with jax.enable_x64(True):
        personal = jax.eval_shape(_personal_model, algorithm, problem, state)
        shared = jax.eval_shape(algorithm.server_model, state.server)
        expected = jax.eval_shape(problem.init, jax.random.key(0))
    for name, model in (("personal_model", personal), ("server_model", shared)):
        require(model is None or _types(model) == _types(expected),
                f"{name} does not have the structure, shapes and dtypes of the problem's model: return parameters as "
                "`init` gets them" + (", or None if there is no shared model" if name == "server_model" else ""))


def check_single_sample(make: Make) -> None:
    """With one party that has one sample, the personal model is finite, and all numbers are float32.

    With the sequential scheduler.
    """
    with jax.enable_x64(False):
        algorithm, problem = make(example_solver()), example_problem((1,))
        state = run_rounds(algorithm, problem, Full(), seed=SEED, rounds=ROUNDS)
        model = jax.jit(_personal_model)(algorithm, problem, state)
        finite = jax.tree.map(lambda leaf: bool(np.isfinite(np.asarray(leaf)).all()), model)
    require(jax.tree.all(finite), "with one party and one sample the personal model is not finite: look for divisions "
                                  "by n - 1 or by a spread")
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        _require_dtype(path, leaf, jnp.float32)


def check_empty_round(make: Make) -> None:
    """Rounds in which no party takes part change nothing."""
    trial = _trial(make)
    require(digest(trial.run(trial.final, empty=True)) == digest(trial.final),
            "rounds without any party have changed the state: change it in the party and the server functions of the "
            "phases only")


def check_declarations(make: Make) -> None:
    """``replies_models`` and ``needs_individual_replies`` are true, and the shapes of replies are known without data.

    The Python loop refuses replies whose shapes are not those of ``reply_shapes``. A server that does not need
    individual replies makes the same step if each of them is replaced by their mean.
    """
    algorithm, problem, state = _trial(make).double
    with jax.enable_x64(True):
        model = jax.eval_shape(problem.init, jax.random.key(0))
        shapes = reply_shapes(algorithm, model)
        require(not algorithm.replies_models or _types(shapes[-1]) == _types(model),
                "replies_models is True, but the replies of the last phase do not have the structure of a model: set "
                "it to False")
        if algorithm.needs_individual_replies:
            return
        key, cohort = draw_cohort(PARTICIPATION, problem.sizes, SEED, 0)
        weight = jnp.array([0.4, 0.3, 0.2, 0.1])
        cohort = replace(cohort, weight=weight, shares=weight)
        for phase, shape in enumerate(shapes):
            rows = stacked_replies(_numbers(shape, len(weight)), cohort, jnp.ones(len(weight), bool))
            step = server_step(algorithm, state.server, rows, key, phase)
            from_mean = server_step(algorithm, state.server, _averaged(rows), key, phase)
            assert_close(from_mean, step, 1e-9, "needs_individual_replies is False, but the server's step changes if "
                                                "every reply is replaced by their mean: set it to True")


def check_half_precision(make: Make) -> None:
    """With a model in float16 or bfloat16, states are finite and agree with float32 to 0.05.

    It is not one of ``CHECKS``, because it compiles two more programs: use it for algorithms that are meant for models
    in half precision.
    """
    trial = _trial(make)
    for dtype in (jnp.float16, jnp.bfloat16):
        with jax.enable_x64(False):
            algorithm, problem = make(example_solver()), example_problem(dtype=dtype)
            final = run_rounds(algorithm, problem, PARTICIPATION, seed=SEED, rounds=ROUNDS)
            wide = jax.tree.map(lambda a, b: np.asarray(a, b.dtype), final, trial.final)
        assert_close(wide, trial.final, 0.05, f"{jnp.dtype(dtype).name} and float32 differ: compute sums and norms in "
                                              "float32, as resolvent.math.tree does")


CHECKS: tuple[Callable[[Make], None], ...] = (
    check_repeatable, check_rounds_continue, check_compiles_once, check_sweep, check_python_loop, check_dtypes,
    check_models, check_single_sample, check_empty_round, check_declarations,
)


def check_algorithm(make: Make) -> None:
    """Check all clauses of the contract.

    Args:
        make: builds the algorithm with a local solver, as a preset does. Numbers of the solver can be traced.

    Raises:
        AssertionError: a clause does not hold. The message says what was expected and what to do.

    Example:
        >>> check_algorithm(lambda solver: rv.fedprox(solver, mu=0.5))
    """
    for check in CHECKS:
        check(make)


def _rows(parties: PyTree[Any], index: NDArray[np.intp]) -> PyTree[Any]:
    """Rows of leaves [N, ...]."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], parties)


def _require_dtype(path: Any, leaf: Any, precision: Any) -> None:
    """Numbers of the state have the precision of the model."""
    require(not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype == precision,
            f"leaf {jax.tree_util.keystr(path)} of the state is {leaf.dtype} where numbers are {precision.__name__}: "
            "create arrays in the dtype of the model, with resolvent.math.tree")


def _types(tree: PyTree[Any]) -> PyTree[Any]:
    """Structure, shapes and dtypes, and whether a dtype is weak: if that changes, the next round compiles again."""
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)), tree)


def _personal_model(algorithm: Algorithm, problem: Problem, state: Federation) -> PyTree[Any]:
    """The personal model of party 0."""
    k, row = jnp.array(0), jax.tree.map(lambda leaf: leaf[0], state.parties)
    return algorithm.personal_model(row, algorithm.model_message(state.server, k), problem.oracle(k))


def _numbers(shapes: PyTree[Any], rows: int) -> PyTree[Any]:
    """Different numbers between 1 and 2 in leaves [rows, ...]; zeros in leaves that are not real."""
    rng = np.random.default_rng(0)

    def leaf(shape: jax.ShapeDtypeStruct) -> Any:
        size = (rows, *shape.shape)
        return jnp.asarray(rng.uniform(1, 2, size) if jnp.issubdtype(shape.dtype, jnp.floating) else np.zeros(size),
                           shape.dtype)

    return jax.tree.map(leaf, shapes)


def _averaged(replies: Replies) -> Replies:
    """The replies, each replaced by their mean."""
    mean = replies.mean()
    return replace(replies, payload=jax.tree.map(lambda leaf, row: jnp.broadcast_to(row, leaf.shape).astype(leaf.dtype),
                                                 replies.payload, mean))
