"""The traced programs of a run: what its rounds and its evaluations compute, however its code is written."""

from collections.abc import Sequence
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.algorithms.algorithm import Algorithm, ServerState
from resolvent.data.federated import SPLITS
from resolvent.errors import InputError, shorten
from resolvent.math.tree import Vector
from resolvent.problem.problem import Problem
from resolvent.simulator.checkpoint.own_code import digest_of_code, own_parts
from resolvent.simulator.checkpoint.program_digest import digest_of_program
from resolvent.simulator.engine.compiled_rounds import initial_state, program_of_round
from resolvent.simulator.engine.predrawn import draw_round
from resolvent.simulator.placement import limit_batches
from resolvent.simulator.plan import Plan
from resolvent.simulator.record.evaluate import evaluate_models, program_of_models
from resolvent.simulator.task import Task

_ADVICE = ("JAX runs Python once and keeps the numbers that it met: draw random numbers with jax.random from the key "
           "that the function gets, and make a setting a field of the algorithm or the model")
_repeatable: set[Any] = set()


def traced_parts(plan: Plan) -> tuple[Any, ...]:
    """The parts of a plan whose code JAX traces."""
    return plan.algorithm, plan.task.model, plan.task.problem, plan.participation


def digests_of_programs(plan: Plan, record: Sequence[str] | None = None) -> dict[str, str]:
    """Name of a program of the run -> its digest.

    It does not depend on the scheduler, the devices and the number of rounds, which may differ between the parts of a
    run. JAX stores traces: a run on one CPU device has traced its rounds already.

    Args:
        record: names of what each round records, if it is not that of the plan.
    """
    return _digests(limit_batches(plan), _trace, plan.recorded if record is None else tuple(record))


def check_repeatable(plan: Plan) -> None:
    """Trace the user's own code once more, and compare: a run could otherwise neither be repeated nor resumed.

    A combination of code, structure and shapes is checked once in a process.
    """
    code = digest_of_code(parts := traced_parts(plan))
    if not code:
        return
    plan = limit_batches(plan)
    leaves, structure = jax.tree.flatten((plan.algorithm, _shapes(plan.task), plan.participation))
    key = (code, structure, plan.task.parties, *((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))
    if key in _repeatable:
        return
    first, again = (_digests(plan, trace, plan.recorded) for trace in (_trace, _trace_again))
    if different := [name for name in first if first[name] != again[name]]:
        names = shorten(", ".join(own_parts(parts)))
        title = f"{plan.name}: tracing {' and '.join(different)} twice gives two programs"
        if again == _digests(plan, _trace_again, plan.recorded):
            raise InputError(f"{title}: a function or a global variable that {names} reads has changed since JAX "
                             "compiled it in this process, and the run would use the old one: call "
                             "jax.clear_caches(), or start Python again")
        raise InputError(f"{title}: the code of {names} draws numbers outside of jax.random, such as with np.random, "
                         f"or reads something that changes, such as the time. {_ADVICE}")
    _repeatable.add(key)


def _digests(plan: Plan, trace: Any, record: tuple[str, ...]) -> dict[str, str]:
    algorithm, participation = plan.algorithm, plan.training_participation
    problem = _shapes(plan.task)
    index = jax.ShapeDtypeStruct(plan.evaluation.parties.shape, plan.evaluation.parties.dtype)  # type: ignore[no-untyped-call]
    first = trace(initial_state, algorithm, _pooled(plan.task) if plan.pools_data else problem, participation,
                  jnp.array(plan.seed))
    state = first.out_info
    models = trace(program_of_models, algorithm, problem, state, index)
    programs = {
        "the first state": first,
        "the cohorts": trace(draw_round, participation, jnp.asarray(plan.task.sizes), state.participation,
                             jnp.array(plan.seed), jnp.array(0)),
        "the rounds": program_of_round(algorithm, _pooled(plan.task) if plan.pools_data else problem, participation,
                                       state, record, trace),
        "the personal models": models,
        "the shared model": trace(_shared_model, algorithm, state.server),
        "the scores": trace(evaluate_models, problem, models.out_info, index)}
    return {name: digest_of_program(program.jaxpr) for name, program in programs.items()}


@jax.jit
def _shared_model(algorithm: Algorithm, server: ServerState) -> Vector | None:
    return algorithm.server_model(server)


def _trace(function: Any, *args: Any, **static: Any) -> jax.stages.Traced:
    """The program of a compiled function; JAX finds the trace of an earlier call again."""
    traced: jax.stages.Traced = function.trace(*args, **static)
    return traced


def _trace_again(function: Any, *args: Any, **static: Any) -> jax.stages.Traced:
    """The program of a compiled function, from a new trace."""
    @wraps(function.__wrapped__)
    def call(*args: Any) -> Any:
        return function.__wrapped__(*args, **static)

    return jax.jit(call).trace(*args)


def _shapes(task: Task) -> Problem:
    """The shapes of the problem of all parties, wherever their data are."""
    if task.problem is not None:
        problem: Problem = _as_shapes(task.problem)
        return problem
    assert task.data is not None
    offset, length = (np.stack([getattr(task.data.splits[s], name) for s in SPLITS]) for name in ("offset", "length"))
    return _learning_problem(task, task.data.total, offset, length)


def _pooled(task: Task) -> Problem:
    """The shapes of the problem of one party that has the samples of all."""
    if task.problem is not None:
        problem: Problem = _as_shapes(task.problem.pooled())
        return problem
    rows, zeros = int(task.sizes.sum()), np.zeros((len(SPLITS), 1), task.sizes.dtype)
    return _learning_problem(task, rows, zeros, zeros)


def _learning_problem(task: Task, rows: int, offset: Any, length: Any) -> Problem:
    assert task.model is not None
    assert task.data is not None
    template = task.gatherer.template
    x, y = (jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), part)  # type: ignore[no-untyped-call]
            for part in (template.x, template.y))
    offset, length = (jax.eval_shape(jnp.asarray, part) for part in (offset, length))
    sizes = jax.ShapeDtypeStruct(length.shape[1:], length.dtype)  # type: ignore[no-untyped-call]
    return template.with_samples(x, y, offset, length, sizes)


def _as_shapes(tree: Any) -> Any:
    """The arrays of a tree as shapes; numbers stay, because a program distinguishes them from arrays."""
    def shape(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array | np.ndarray):
            return leaf
        return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            leaf.shape, leaf.dtype, weak_type=getattr(leaf, "weak_type", False))

    return jax.tree.map(shape, tree)
