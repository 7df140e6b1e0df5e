"""Loops whose length is known only at run time, and what becomes of them when many run side by side under ``vmap``.

Plain batching steps every lane until the longest is done. Within ``queued(width)`` a loop that is batched becomes a
queue instead: ``width`` lanes step together, and a lane that is done is stored and takes up one of those that wait,
the longest first. Lanes are then idle at the end only. Out of a batch a loop is what it always was.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Int, PyTree

from resolvent.math import tree
from resolvent.xla.compact import opened, repeated

__all__ = ["Queued", "counted", "prepared", "queued", "run_queue", "while_loop"]

State = TypeVar("State")
Context = TypeVar("Context")
_width: ContextVar[int | None] = ContextVar("width", default=None)


@contextlib.contextmanager
def queued(width: int) -> Iterator[None]:
    """Loops that are traced within are queues of ``width`` lanes where they are batched."""
    token = _width.set(width)
    try:
        yield
    finally:
        _width.reset(token)


def prepared(prepare: Callable[[Array], Context], step: Callable[[Context, State], State], state: State, *,
             total: Int[Array, ""], at_once: int) -> State:
    """For i = 0, ..., total-1: ``step(context of i, state)``.

    Args:
        prepare: the numbers of successive steps [S] -> their contexts, leaves [S, ...].
        step: one step.
        state: what it starts from.
        total: how many steps.
        at_once: for how many steps contexts are prepared at a time.
    """
    if _width.get() is not None:
        # Lanes are not in step with each other: that one prepares would cost all of them as much.
        return counted(lambda i, s: step(tree.rows(prepare(i[None]), 0), s), state, total=total)

    def block(e: Array, state: State) -> State:
        contexts = prepare(e * at_once + jnp.arange(at_once))
        here = jnp.minimum(at_once, total - e * at_once)
        return repeated(here, lambda i, s: step(tree.rows(contexts, i), s), state)

    nested: State = jax.lax.fori_loop(0, (total + at_once - 1) // at_once, block, state)
    return nested


def counted(step: Callable[[Array, State], State], state: State, *, total: Int[Array, ""],
            cost: ArrayLike = 1) -> State:
    """For i = 0, ..., total-1: ``step(i, state)``; ``cost`` is that of one step, in any unit."""
    if _width.get() is None:
        return repeated(total, step, state)
    return while_loop(lambda s: s[0] < total, lambda s: (s[0] + 1, step(*s)), (jnp.zeros_like(total), state),
                      work=total * cost)[1]


def while_loop(go_on: Callable[[State], Array], step: Callable[[State], State], state: State, *,
               work: ArrayLike) -> State:
    """``jax.lax.while_loop``, or a queue.

    Args:
        go_on: whether there is another step.
        step: one step.
        state: what it starts from.
        work: how much there is to do, as far as that is known: the queue begins with the most.
    """
    width = _width.get()
    if width is None:
        plain: State = jax.lax.while_loop(go_on, step, state)
        return plain
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(jnp.result_type(leaf)), state)  # nothing of a weak type
    # What the functions close over may differ from lane to lane: it has to be an argument.
    (more, asks), (forward, steps) = opened(go_on, state), opened(step, state)
    split = len(asks.consts)

    @jax.custom_batching.custom_vmap
    def run(consts: list[Array], state: State, work: Array) -> State:
        done: State = jax.lax.while_loop(
            lambda s: more(consts[:split], s), lambda s: forward(consts[split:], s), state)
        return done

    @run.def_vmap
    def batched(size: int, mapped: list[Any], consts: list[Array], state: State, work: Array) -> tuple[State, Any]:
        def together(own: list[Array]) -> list[Array]:
            """A lane's own constants among those that all share."""
            mine = iter(own)
            return [next(mine) if m else c for m, c in zip(mapped[0], consts, strict=True)]

        own = [c for m, c in zip(mapped[0], consts, strict=True) if m]
        every = jax.tree.map(lambda leaf, m: leaf if m else tree.stack(leaf, size), (state, work), tuple(mapped[1:]))
        found = run_queue(lambda o, s: more(together(o)[:split], s),
                          lambda o, s: forward(together(o)[split:], s), own, *every, width=width)
        return found.state, jax.tree.map(lambda _: True, state)

    result: State = run([*asks.consts, *steps.consts], state, jnp.asarray(work))
    return result


class Queued(NamedTuple):
    """What a queue leaves.

    Attributes:
        state: leaves [size, ...], where each loop ended.
        steps: how many steps the lanes made together.
    """

    state: PyTree[Any]
    steps: Int[Array, ""]


def run_queue(go_on: Callable[[PyTree[Any], State], Array], step: Callable[[PyTree[Any], State], State],
              own: PyTree[Any], state: State, work: Array, *, width: int) -> Queued:
    """Run ``size`` loops in ``width`` lanes.

    Args:
        go_on: (constants, state) of one loop -> whether there is another step.
        step: (constants, state) of one loop -> its next state.
        own: leaves [size, ...], each loop's constants.
        state: leaves [size, ...], what they start from.
        work: [size] how much each has to do; the queue begins with the most.
        width: how many lanes.
    """
    size = len(work)
    width = min(width, size)
    waiting = jnp.argsort(-work, stable=True)
    step_all, more = jax.vmap(step), jax.vmap(go_on)

    def until_one_is_done(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        taken, at, live, own_now, now, made, out = carry

        def all_go_on(s: tuple[State, Array]) -> Bool[Array, ""]:
            return jnp.all(more(own_now, s[0]) | ~live)

        # A lane without work steps on as well: nobody reads what it makes.
        now, made = jax.lax.while_loop(all_go_on, lambda s: (step_all(own_now, s[0]), s[1] + width), (now, made))
        done = live & ~more(own_now, now)
        out = jax.tree.map(lambda all_, lane: all_.at[jnp.where(done, at, size)].set(lane, mode="drop"), out, now)
        place = taken + jnp.cumsum(done) - 1
        loads = done & (place < size)
        at = jnp.where(loads, waiting[jnp.minimum(place, size - 1)], at)
        own_now, now = (jax.tree.map(lambda all_, lane: _where(loads, all_[at], lane), *pair)
                        for pair in ((own, own_now), (state, now)))
        return taken + jnp.sum(loads), at, (live & ~done) | loads, own_now, now, made, out

    first = waiting[:width]
    carry = (jnp.array(width), first, jnp.ones(width, bool), tree.rows(own, first), tree.rows(state, first),
             jnp.array(0), state)
    *_, made, out = jax.lax.while_loop(lambda carry: jnp.any(carry[2]), until_one_is_done, carry)
    return Queued(out, made)


def _where(mask: Bool[Array, " width"], new: Array, old: Array) -> Array:
    return jnp.where(mask.reshape((-1,) + (1,) * (old.ndim - 1)), new, old)
