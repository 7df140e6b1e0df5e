"""Loops whose number of steps is known at run time only, and how many of them run side by side under ``vmap``.

Plain batching steps every lane until the longest loop is done. Within ``lane_queue(width)`` a batched loop runs as a
queue instead: ``width`` lanes step together, and when the loop of a lane is done, its result is stored and the lane
continues with one of the waiting loops, the longest first. Lanes are then idle only at the end. A loop that is not
batched is the same in both cases.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Int, PyTree

from resolvent.xla.rows import rows
from xla_cpu_rewrites.small_call import convert_closure, repeat

State = TypeVar("State")
Inputs = TypeVar("Inputs")
_width: ContextVar[int | None] = ContextVar("width", default=None)


@contextlib.contextmanager
def lane_queue(width: int) -> Iterator[None]:
    """Run the batched loops of what is traced within as queues of ``width`` lanes."""
    token = _width.set(width)
    try:
        yield
    finally:
        _width.reset(token)


def fori_loop_with_prefetch(prefetch: Callable[[Array], Inputs], step: Callable[[Inputs, State], State],
                            state: State, *, total: Int[Array, ""], block: int) -> State:
    """For i = 0, ..., total-1: ``state = step(inputs of i, state)``, with the inputs of a block of steps made at once.

    Args:
        prefetch: the numbers of successive steps [S] -> their inputs, leaves [S, ...].
        step: one step.
        state: the first state.
        total: number of steps.
        block: number of steps whose inputs are made at once.
    """
    if _width.get() is not None:
        # The lanes of a queue are at different steps: a prefetch in one of them would cost the time of all.
        return fori_loop(lambda i, s: step(rows(prefetch(i[None]), 0), s), state, total=total)

    def run_block(b: Array, state: State) -> State:
        inputs = prefetch(b * block + jnp.arange(block))
        steps = jnp.minimum(block, total - b * block)
        return repeat(steps, lambda i, s: step(rows(inputs, i), s), state)

    last: State = jax.lax.fori_loop(0, (total + block - 1) // block, run_block, state)
    return last


def fori_loop(step: Callable[[Array, State], State], state: State, *, total: Int[Array, ""],
              cost: ArrayLike = 1) -> State:
    """For i = 0, ..., total-1: ``state = step(i, state)``.

    Args:
        step: one step.
        state: the first state.
        total: number of steps.
        cost: cost of one step in any unit, by which a queue orders loops.
    """
    if _width.get() is None:
        return repeat(total, step, state)
    return while_loop(lambda s: s[0] < total, lambda s: (s[0] + 1, step(*s)), (jnp.zeros_like(total), state),
                      work=total * cost)[1]


def while_loop(has_work: Callable[[State], Array], step: Callable[[State], State], state: State, *,
               work: ArrayLike) -> State:
    """``jax.lax.while_loop``, or a queue within ``lane_queue``.

    Args:
        has_work: whether there is another step.
        step: one step.
        state: the first state.
        work: estimated cost of the loop in any unit; a queue starts with the largest.
    """
    width = _width.get()
    if width is None:
        plain: State = jax.lax.while_loop(has_work, step, state)
        return plain
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(jnp.result_type(leaf)), state)  # no weak types
    # Closed-over arrays may differ between lanes, so they have to be arguments.
    condition, condition_program = convert_closure(has_work, state)
    body, body_program = convert_closure(step, state)
    split = len(condition_program.consts)

    @jax.custom_batching.custom_vmap
    def run(consts: list[Array], state: State, work: Array) -> State:
        last: State = jax.lax.while_loop(
            lambda s: condition(consts[:split], s), lambda s: body(consts[split:], s), state)
        return last

    @run.def_vmap
    def batched(size: int, is_batched: list[Any], consts: list[Array], state: State, work: Array) -> tuple[State, Any]:
        def merge(lane_consts: list[Array]) -> list[Array]:
            """The constants of one lane and those that all lanes share, in the order of ``consts``."""
            remaining = iter(lane_consts)
            return [next(remaining) if b else c for b, c in zip(is_batched[0], consts, strict=True)]

        lane_consts = [c for b, c in zip(is_batched[0], consts, strict=True) if b]
        states, works = jax.tree.map(lambda leaf, b: leaf if b else jnp.broadcast_to(leaf, (size, *leaf.shape)),
                                     (state, work), tuple(is_batched[1:]))
        result = run_queue(lambda c, s: condition(merge(c)[:split], s), lambda c, s: body(merge(c)[split:], s),
                           lane_consts, states, works, width=width)
        return result.state, jax.tree.map(lambda _: True, state)

    result: State = run([*condition_program.consts, *body_program.consts], state, jnp.asarray(work))
    return result


class QueueResult(NamedTuple):
    """The result of a queue.

    Attributes:
        state: leaves [size, ...], the last state of each loop.
        steps: steps of all lanes together, idle ones included.
    """

    state: PyTree[Any]
    steps: Int[Array, ""]


class _Lanes(NamedTuple):
    """The state of a queue.

    Attributes:
        loops: [width] the loop that each lane runs.
        is_active: [width] whether the lane has a loop.
        consts: leaves [width, ...], the constants of the lanes' loops.
        state: leaves [width, ...], the states of the lanes' loops.
        results: leaves [size, ...], the last states of the loops that are done.
    """

    started: Int[Array, ""]
    loops: Int[Array, " width"]
    is_active: Bool[Array, " width"]
    consts: PyTree[Any]
    state: PyTree[Any]
    steps: Int[Array, ""]
    results: PyTree[Any]


def run_queue(has_work: Callable[[PyTree[Any], State], Array], step: Callable[[PyTree[Any], State], State],
              consts: PyTree[Any], state: State, work: Array, *, width: int) -> QueueResult:
    """Run ``size`` loops in ``width`` lanes.

    Args:
        has_work: (constants, state) of one loop -> whether there is another step.
        step: (constants, state) of one loop -> its next state.
        consts: leaves [size, ...], the constants of each loop.
        state: leaves [size, ...], the first state of each loop.
        work: [size] estimated cost of each loop; the queue starts with the largest.
    """
    size = len(work)
    width = min(width, size)
    order = jnp.argsort(-work, stable=True)
    step_all, have_work = jax.vmap(step), jax.vmap(has_work)

    def run_until_one_is_done(lanes: _Lanes) -> _Lanes:
        def all_have_work(carry: tuple[State, Array]) -> Bool[Array, ""]:
            return jnp.all(have_work(lanes.consts, carry[0]) | ~lanes.is_active)

        # A lane without a loop steps as well; its results are not used.
        state, steps = jax.lax.while_loop(all_have_work, lambda c: (step_all(lanes.consts, c[0]), c[1] + width),
                                          (lanes.state, lanes.steps))
        done = lanes.is_active & ~have_work(lanes.consts, state)
        results = jax.tree.map(
            lambda rows, lane: rows.at[jnp.where(done, lanes.loops, size)].set(lane, mode="drop"), lanes.results, state)
        position = lanes.started + jnp.cumsum(done) - 1
        starts = done & (position < size)
        loops = jnp.where(starts, order[jnp.minimum(position, size - 1)], lanes.loops)
        new_consts, new_state = (
            jax.tree.map(lambda rows, lane: jnp.where(starts.reshape(-1, *[1] * (lane.ndim - 1)), rows[loops], lane),
                         *pair)
            for pair in ((consts, lanes.consts), (first_state, state)))
        return _Lanes(lanes.started + jnp.sum(starts), loops, (lanes.is_active & ~done) | starts, new_consts, new_state,
                      steps, results)

    first_state, first = state, order[:width]
    lanes = _Lanes(jnp.array(width), first, jnp.ones(width, bool), rows(consts, first), rows(state, first),
                   jnp.array(0), state)
    last = jax.lax.while_loop(lambda lanes: jnp.any(lanes.is_active), run_until_one_is_done, lanes)
    return QueueResult(last.results, last.steps)
