"""Small loops, and small steps of larger ones, as one function of machine code.

XLA's CPU runtime starts every fused operation of a loop's body anew, for about 0.3 microseconds each: more than a step
of a small model computes. It can compile a whole call into one function instead, loops included, if it is told to and
the call holds nothing that needs the runtime. That is done here where it is known to work, and nowhere else.

``apart`` is of the same kind: a call that XLA is told to leave one.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import ClosedJaxpr, Jaxpr, Var, jaxpr_as_fun
from jaxtyping import Array, Int

__all__ = ["apart", "compact", "is_simple", "one_function", "opened", "repeated"]

State = TypeVar("State")

# XLA tells such calls by these; where it does not know them, they are calls like any other.
_APART = {"inlineable": "false"}
_ONE_FUNCTION = {"xla_cpu_small_call": "true", **_APART}
_KNOWN_TO_WORK = (0, 10)  # the first version of JAX with which this has been tried
_SMALLEST = 2048  # bytes of results: of a loop below 1024 XLA makes a function itself, and one must not hold another
_SHARED_OUT = 2**18  # bytes: a larger result XLA may have several threads write
_LARGEST_SUM = 1024  # numbers; larger sums are a library's work, which such a function cannot call
_SIMPLE = frozenset([
    "abs", "add", "add_any", "and", "broadcast_in_dim", "clamp", "concatenate", "convert_element_type", "copy",
    "copy_p", "cos", "div", "dynamic_slice", "dynamic_update_slice", "eq", "exp", "exp2", "expm1", "floor",
    "ge", "gt", "integer_pow", "iota", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul",
    "ne", "neg", "not", "or", "pad", "pow", "rem", "reshape", "rsqrt", "select_n", "shift_left",
    "shift_right_logical", "sign", "sin", "slice", "split", "sqrt", "square", "squeeze", "stack",
    "stop_gradient", "sub", "tanh", "transpose", "unstack", "xor"])
_SUMS = frozenset(["reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or"])
_CALLS = frozenset(["closed_call", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call", "jit", "pjit"])
_allowed: ContextVar[bool] = ContextVar("allowed", default=False)


@contextlib.contextmanager
def compact() -> Iterator[None]:
    """What is traced within may become one function where it asks for that: for programs that are given all their
    data as arguments, as the engine is. XLA takes constants apart when it compiles, and what is left may be no longer
    simple.
    """
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


def repeated(total: Int[Array, ""], step: Callable[[Array, State], State], state: State) -> State:
    """``step(total - 1, ... step(1, step(0, state)))``, on a CPU as one function if the step is simple and not tiny.

    Outside of ``compact()`` and under ``vmap`` it is ``jax.lax.fori_loop``.
    """
    if not _allowed.get() or not _possible():
        plain: State = jax.lax.fori_loop(0, total, step, state)
        return plain
    body, closed = opened(lambda both: step(*both), (jnp.zeros_like(total), state))

    def loop(total: Array, consts: list[Any], state: State) -> State:
        done: State = jax.lax.fori_loop(0, total, lambda i, s: body(consts, (i, s)), state)
        return done

    if not _worth_it(closed.jaxpr):
        return loop(total, closed.consts, state)

    @jax.custom_batching.custom_vmap
    def run(total: Array, consts: list[Any], state: State) -> State:
        told: State = _as_one(loop, total, consts, state)
        return told

    @run.def_vmap
    def batched(size: int, mapped: tuple[Any, ...], *args: Any) -> tuple[State, Any]:
        axes = jax.tree.map(lambda m: 0 if m else None, tuple(mapped))
        return jax.vmap(loop, axes, axis_size=size)(*args), jax.tree.map(lambda _: True, state)

    result: State = run(total, closed.consts, state)
    return result


def one_function(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f``, within ``compact()`` on a CPU as one function if it is simple, not tiny and not large."""
    def call(*args: Any) -> Any:
        if not _allowed.get() or not _possible():
            return f(*args)
        jaxpr = jax.make_jaxpr(f)(*args).jaxpr
        worth_it = _worth_it(jaxpr) and _is_for_one_thread(jaxpr)
        return _as_one(f, *args) if worth_it else f(*args)

    return call


def apart(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f``, on a CPU as a call of its own, whose results are kept: merged with what reads them, XLA would make them
    again for each of its numbers.
    """
    return lambda *args: _told(_APART, f, *args) if _possible() else f(*args)


def _as_one(f: Callable[..., Any], *args: Any) -> Any:
    """A call that is told to be one function; a plain one where an argument has no numbers.

    A number of every argument is a result, too: XLA aborts where it finds, in simplifying such a function, that it does
    not need an argument. Behind the barrier nobody sees that these results are not read.
    """
    if any(leaf.size == 0 for leaf in jax.tree.leaves(args)):
        return f(*args)

    def call(*args: Any) -> Any:
        return f(*args), [jax.lax.slice(leaf, (0,) * leaf.ndim, (1,) * leaf.ndim) for leaf in jax.tree.leaves(args)]

    return jax.lax.optimization_barrier(_told(_ONE_FUNCTION, call, *args))[0]  # type: ignore[no-untyped-call]


def _told(what: dict[str, str], f: Callable[..., Any], *args: Any) -> Any:
    """A call that is told, and nothing within it."""
    return set_xla_metadata(jax.jit(f)(*args), **what)  # type: ignore[no-untyped-call]


def _worth_it(jaxpr: Jaxpr) -> bool:
    return is_simple(jaxpr) and _written(jaxpr) >= _SMALLEST


def _possible() -> bool:
    """Whether this machine's XLA can, and nobody has switched it off."""
    return (jax.default_backend() == "cpu" and jax.__version_info__ >= _KNOWN_TO_WORK
            and os.environ.get("RESOLVENT_COMPACT") != "0")


def opened(f: Callable[[State], Any], state: State) -> tuple[Callable[[list[Any], State], Any], ClosedJaxpr]:
    """``f`` as a function of what it closes over and the state, and its program, with what it closes over."""
    closed, shape = jax.make_jaxpr(f, return_shape=True)(state)

    def call(consts: list[Any], state: State) -> Any:
        leaves = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, consts))(*jax.tree.leaves(state))
        return jax.tree.unflatten(jax.tree.structure(shape), leaves)

    return call, closed


def is_simple(jaxpr: Jaxpr) -> bool:
    """Whether XLA compiles all of it without calling a library: no large sums, no products of matrices, no loops."""
    return all(_is_simple_step(eqn) for eqn in jaxpr.eqns)


def _written(jaxpr: Jaxpr) -> int:
    """Bytes of the results that are not arguments passed on."""
    passed = {*jaxpr.invars, *jaxpr.constvars}
    changed: list[Any] = [v.aval for v in jaxpr.outvars if isinstance(v, Var) and v not in passed]
    return sum(map(_bytes, changed))


def _is_for_one_thread(jaxpr: Jaxpr) -> bool:
    """Whether XLA would not share any of it out among threads: outside of a loop, such a function would not compile.

    It does that with results of a size, and with what has more to compute than to read and write.
    """
    results: list[Any] = [v.aval for eqn in jaxpr.eqns for v in eqn.outvars]
    moved: list[Any] = [v.aval for v in (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars)]
    return (all(_bytes(aval) < _SHARED_OUT for aval in results)
            and sum(aval.size for aval in results) <= sum(map(_bytes, moved)))


def _bytes(aval: Any) -> int:
    return int(aval.size * aval.dtype.itemsize)


def _is_simple_step(eqn: Any) -> bool:
    name = eqn.primitive.name
    if name in _SIMPLE:
        return True
    if name in _SUMS:
        return bool(eqn.invars[0].aval.size <= _LARGEST_SUM)
    if name == "dot_general":
        ranks = sorted(v.aval.ndim for v in eqn.invars)
        return ranks == [1, 2] or (ranks == [1, 1] and eqn.invars[0].aval.size <= _LARGEST_SUM)
    return name in _CALLS and all(is_simple(inner) for inner in _within(eqn))


def _within(eqn: Any) -> Iterator[Jaxpr]:
    for value in eqn.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr):
                yield one.jaxpr
            elif isinstance(one, Jaxpr):
                yield one
