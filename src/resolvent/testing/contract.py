"""The clauses of the contract: properties that every algorithm has, whatever it computes.

No clause looks at the name of an algorithm. Compiling takes nearly all of the time, so the clauses of one algorithm
share their programs and their states: a queue of two lanes and the Python loop, both in float64. Only ``check_dtypes``
and ``check_single_sample`` compile others, the sequential scheduler in float32.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr
from jaxtyping import Array, ArrayLike, PyTree
from numpy.typing import NDArray

from resolvent.algorithms.aggregators.aggregator import with_limited_shares
from resolvent.algorithms.algorithm import Algorithm, Replies, ServerState
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.description import describe
from resolvent.algorithms.participation.rules import Full
from resolvent.algorithms.round import reply_shapes, stacked_replies
from resolvent.differential_privacy.noise_keys import check_same_noise, noise_keys
from resolvent.errors import InputError
from resolvent.problem.problem import Problem
from resolvent.problem.solvers.dpsgd import DPSGD
from resolvent.simulator.engine.rounds import compiled_programs, initial_state, run_rounds
from resolvent.simulator.engine.schedulers import Queue
from resolvent.simulator.states import Federation
from resolvent.simulator.storage.tree_files import digest
from resolvent.simulator.user_errors import USER_ERRORS, message_of
from resolvent.testing.example import (
    PARTICIPATION,
    ROUNDS,
    SEED,
    SIZES,
    Make,
    Trial,
    assert_close,
    example_problem,
    example_solver,
    require,
    trial_of,
    types_of,
)
from resolvent.testing.python_loop import draw_cohort, server_step

_WEIGHTS = (0.4, 0.3, 0.2, 0.1)


def check_repeatable(make: Make) -> None:
    """The same arguments give the same states bit for bit, and no argument changes."""
    trial = trial_of(make)
    before = digest(trial.double)
    first, second = digest(trial.final), digest(trial.run())
    require(first == second, "two runs from one state differ: draw every random number from the key that the party or "
                             "the server function gets, and store nothing on the algorithm")
    require(digest(trial.double) == before, "a run has changed its arguments: return new states, and leave the arrays "
                                            "of the algorithm and of the old states as they are")


def check_rounds_continue(make: Make) -> None:
    """A round changes the state, keeps its types, and 3 rounds in one call are 1 round and 2 more."""
    trial = trial_of(make)
    _, _, first = trial.double
    require(digest(trial.final) != digest(first), "3 rounds have changed neither the server's state nor a party's: "
                                                  "return the new states from the phases")
    require(types_of(trial.final) == types_of(first),
            "the shapes or dtypes of the state change in a round, so that every round compiles: cast counters and "
            "numbers to the dtype of the first state")
    later = trial.run(trial.run(rounds=1), start=1, rounds=ROUNDS - 1)
    require(digest(later) == digest(trial.final), "a run that was interrupted differs from one that was not: keep all "
                                                  "that the next round needs in the server's and the parties' states")


def check_compiles_once(make: Make) -> None:
    """Neither a second call, nor other numbers, nor another number of rounds compiles again."""
    trial = trial_of(make)
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
    trial = trial_of(make)
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
    trial = trial_of(make)
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
    trial = trial_of(make)
    double = trial.trajectory[-1]
    algorithm, problem, first = trial.single
    with jax.enable_x64(False):
        single = run_rounds(algorithm, problem, PARTICIPATION, state=first, seed=SEED, rounds=ROUNDS)
    for precision, state in ((jnp.float32, single), (jnp.float64, double)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            _require_dtype(path, leaf, precision)
    differ = "float32 (sequential scheduler) and float64 (Python loop) differ"
    try:
        assert_close(single, double, 1e-3, differ)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{differ}: {_cause_of_difference(trial)}") from None


def _cause_of_difference(trial: Trial) -> str:
    """Why float32 and float64 differ: the program is traced for it."""
    return ("a random number is drawn with 64 bits in float64, so that the same key gives another number: name its "
             "dtype, such as jax.random.randint(key, shape, low, high, jnp.int32) or jax.random.uniform(key, shape, "
             "jnp.float32)" if _draws_64_bits(trial) else
             "look for sums that cancel, or for decisions that depend on rounding")


def check_models(make: Make) -> None:
    """The personal model of a party, and the server's model if there is one, are models of the problem."""
    algorithm, problem, state = trial_of(make).double
    with jax.enable_x64(True):
        personal = jax.eval_shape(_personal_model, algorithm, problem, state)
        shared = jax.eval_shape(algorithm.server_model, state.server)
        expected = jax.eval_shape(problem.init, jax.random.key(0))
    for name, model in (("personal_model", personal), ("server_model", shared)):
        require(model is None or types_of(model) == types_of(expected),
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
    trial = trial_of(make)
    require(digest(trial.run(trial.final, empty=True)) == digest(trial.final),
            "rounds without any party have changed the state: change it in the party and the server functions of the "
            "phases only")


def check_half_precision(make: Make) -> None:
    """With a model in float16 or bfloat16, states are finite and agree with float32 to 0.05.

    It is not one of ``CHECKS``, because it compiles two more programs: use it for algorithms that are meant for models
    in half precision.
    """
    trial = trial_of(make)
    for dtype in (jnp.float16, jnp.bfloat16):
        with jax.enable_x64(False):
            algorithm, problem = make(example_solver()), example_problem(dtype=dtype)
            final = run_rounds(algorithm, problem, PARTICIPATION, seed=SEED, rounds=ROUNDS)
            wide = jax.tree.map(lambda a, b: np.asarray(a, b.dtype), final, trial.final)
        assert_close(wide, trial.final, 0.05, f"{jnp.dtype(dtype).name} and float32 differ: compute sums and norms in "
                                              "float32, as resolvent.math.tree does")


def check_noise_keys(make: Make) -> None:
    """Solvers that add noise never draw it twice with one key: the difference of two releases would have no noise.

    With ``DPSGD``; an algorithm that refuses this solver, or that calls it as often as a state says, is not checked.
    """
    try:
        algorithm = make(DPSGD(0.1))
        keys = noise_keys(algorithm, describe(algorithm, example_problem().init(jax.random.key(0))))
    except (InputError, AttributeError):
        return
    try:
        check_same_noise(keys, type(algorithm).__name__)
    except InputError as error:
        raise AssertionError(f"{error}; solvers whose ``adds_noise`` is False may share a key") from None


def check_declarations(make: Make) -> None:
    """``replies_models`` and ``needs_individual_replies`` are true, and the shapes of replies are known without data.

    The Python loop refuses replies whose shapes are not those of ``reply_shapes``. A server that does not need
    individual replies makes the same step if each of them is replaced by their mean.
    """
    trial = trial_of(make)
    algorithm, problem, state = trial.double
    with jax.enable_x64(True):
        model = jax.eval_shape(problem.init, jax.random.key(0))
        shapes = reply_shapes(algorithm, model)
        require(not algorithm.replies_models or types_of(shapes[-1]) == types_of(model),
                "replies_models is True, but the replies of the last phase do not have the structure of a model: set "
                "it to False")
        if algorithm.needs_individual_replies:
            return
        key, cohort = _weighted_cohort(trial, _WEIGHTS)
        for phase, rows in enumerate(_replies(shapes, cohort)):
            # The mean of the replies is that with the weights of the server's step.
            rows = replace(rows, weight=with_limited_shares(algorithm, rows.weight))
            step = server_step(algorithm, state.server, rows, key, phase)
            from_mean = server_step(algorithm, state.server, _averaged(rows, rows.mean()), key, phase)
            assert_close(from_mean, step, 1e-9, "needs_individual_replies is False, but the server's step changes if "
                                                "every reply is replaced by their mean: set it to True")


def check_weights(make: Make) -> None:
    """A server that averages replies weighs them.

    The step must not follow from the mean of the replies without their weights. A server may ignore weights otherwise,
    as Krum does.
    """
    trial = trial_of(make)
    algorithm, problem, state = trial.double
    with jax.enable_x64(True):
        shapes = reply_shapes(algorithm, jax.eval_shape(problem.init, jax.random.key(0)))
        key, cohort = _weighted_cohort(trial, _WEIGHTS)
        _, reversed_cohort = _weighted_cohort(trial, _WEIGHTS[::-1])
        for phase, (rows, reweighted) in enumerate(zip(_replies(shapes, cohort), _replies(shapes, reversed_cohort),
                                                       strict=True)):
            def step(replies: Replies, phase: int = phase) -> ServerState:
                return server_step(algorithm, state.server, replies, key, phase)

            plain_mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), rows.payload)
            other = replace(rows, payload=jax.tree.map(
                lambda leaf: leaf + 1 if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, rows.payload))
            ignores_weights = _is_close(step(rows), step(reweighted)) and not _is_close(step(rows), step(other))
            require(not ignores_weights or not _is_close(step(rows), step(_averaged(rows, plain_mean))),
                    "the server's step follows from the mean of the replies without their weights, so that a party "
                    "counts as much as another with more samples, and an absent one as zero: use replies.mean()")


CHECKS: tuple[Callable[[Make], None], ...] = (
    check_repeatable, check_rounds_continue, check_compiles_once, check_sweep, check_python_loop, check_dtypes,
    check_models, check_single_sample, check_empty_round, check_weights, check_declarations, check_noise_keys,
)


def check_algorithm(make: Make) -> None:
    """Check all clauses of the contract.

    Args:
        make: builds the algorithm with a local solver, as a preset does. Numbers of the solver can be traced.

    Raises:
        AssertionError: a clause does not hold, or a function of the algorithm raised an error. The message says what
            was expected, the likely cause, and what to do.

    Example:
        >>> check_algorithm(lambda solver: rv.fedprox(solver, mu=0.5))
    """
    for check in CHECKS:
        try:
            check(make)
        except AssertionError:
            raise
        except USER_ERRORS as error:  # of Python or JAX, in a function of the algorithm
            if (message := message_of(error)) is None:
                raise
            raise AssertionError(f"{check.__name__}: {message}") from error


def _rows(parties: PyTree[Any], index: NDArray[np.intp]) -> PyTree[Any]:
    """Rows of leaves [N, ...]."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], parties)


def _draws_64_bits(trial: Trial) -> bool:
    """Whether a round or the first state draws random numbers whose bits depend on the precision."""
    algorithm, problem, first = trial.double

    def program(state: Federation) -> Any:
        return initial_state(algorithm, problem, PARTICIPATION, SEED), run_rounds(
            algorithm, problem, PARTICIPATION, state=state, seed=SEED, rounds=1, scheduler=Queue(2))

    with jax.enable_x64(True):
        return _has_64_bit_draw(jax.make_jaxpr(program)(first).jaxpr)


def _has_64_bit_draw(program: Jaxpr) -> bool:
    """Whether a program, or one inside it, draws random numbers of 64 bits."""
    for equation in program.eqns:
        if equation.primitive.name == "random_bits" and equation.params["bit_width"] == 64:
            return True
        parts = jax.tree.leaves(equation.params, is_leaf=lambda part: isinstance(part, Jaxpr | ClosedJaxpr))
        inner = (part.jaxpr if isinstance(part, ClosedJaxpr) else part for part in parts)
        if any(_has_64_bit_draw(part) for part in inner if isinstance(part, Jaxpr)):
            return True
    return False


def _require_dtype(path: Any, leaf: Any, precision: Any) -> None:
    """Numbers of the state have the precision of the model."""
    require(not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype == precision,
            f"leaf {jax.tree_util.keystr(path)} of the state is {leaf.dtype} where numbers are {precision.__name__}: "
            "create arrays in the dtype of the model, with resolvent.math.tree")


def _personal_model(algorithm: Algorithm, problem: Problem, state: Federation) -> PyTree[Any]:
    k, row = jnp.array(0), jax.tree.map(lambda leaf: leaf[0], state.parties)
    return algorithm.personal_model(row, algorithm.model_message(state.server, k), problem.oracle(k))


def _weighted_cohort(trial: Trial, weights: tuple[float, ...]) -> tuple[Array, Cohort]:
    """The key and the cohort of round 0, with these weights."""
    _, problem, _ = trial.double
    key, cohort = draw_cohort(PARTICIPATION, problem.sizes, SEED, 0)
    return key, replace(cohort, weight=jnp.array(weights), shares=jnp.array(weights))


def _replies(shapes: tuple[PyTree[Any], ...], cohort: Cohort) -> list[Replies]:
    rows = len(cohort.weight)
    return [stacked_replies(_numbers(shape, rows), cohort, jnp.ones(rows, bool)) for shape in shapes]


def _is_close(actual: PyTree[Any], expected: PyTree[Any]) -> bool:
    try:
        assert_close(actual, expected, 1e-9)
    except AssertionError:
        return False
    return True


def _numbers(shapes: PyTree[Any], rows: int) -> PyTree[Any]:
    """Different numbers between 1 and 2 in leaves [rows, ...]; zeros in leaves that are not real."""
    rng = np.random.default_rng(0)

    def leaf(shape: jax.ShapeDtypeStruct) -> Any:
        size = (rows, *shape.shape)
        return jnp.asarray(rng.uniform(1, 2, size) if jnp.issubdtype(shape.dtype, jnp.floating) else np.zeros(size),
                           shape.dtype)

    return jax.tree.map(leaf, shapes)


def _averaged(replies: Replies, mean: PyTree[Any]) -> Replies:
    """The replies, each replaced by one mean."""
    return replace(replies, payload=jax.tree.map(lambda leaf, row: jnp.broadcast_to(row, leaf.shape).astype(leaf.dtype),
                                                 replies.payload, mean))
