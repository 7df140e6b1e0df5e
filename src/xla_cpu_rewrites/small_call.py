"""Loops and steps that are compiled into one small function of machine code, and calls that are not inlined.

XLA's CPU runtime starts every fused operation of a loop's body separately, which takes about 0.3 microseconds: longer
than a step of a small model computes. With the call metadata ``xla_cpu_small_call`` it compiles the call into one
function instead, loops included, provided that nothing in the call needs the runtime. ``small_call`` and ``repeat``
request this where it is known to work (see ``versions``) and only within ``allow_small_calls()``.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import ClosedJaxpr, Jaxpr, Var, jaxpr_as_fun
from jaxtyping import Array, Int

from xla_cpu_rewrites.programs import inner_jaxprs, programs
from xla_cpu_rewrites.versions import supports_call_metadata

State = TypeVar("State")

# Compilers that do not know these attributes ignore them.
_NO_INLINE = {"inlineable": "false"}
_SMALL_CALL = {"xla_cpu_small_call": "true", **_NO_INLINE}

# XLA itself makes a function of a loop whose results have less than 1024 bytes, and such functions must not be nested.
_MIN_RESULT_BYTES = 2048
# XLA may split the computation of an array of this size among threads.
_PARALLEL_BYTES = 2**18
# XLA computes larger reductions with a library, which a small function cannot call.
_MAX_REDUCTION_SIZE = 1024
# XLA makes a reduction of a matrix product with one result, and calls the library from this number of entries on.
_LIBRARY_REDUCTION_SIZE = 4096
# XLA stores larger constants in buffers, which a small function cannot read: XLA aborts the process.
_MAX_CONSTANT_SIZE = 1024
_ELEMENTAL = frozenset([
    "abs", "add", "add_any", "and", "broadcast_in_dim", "clamp", "concatenate", "convert_element_type", "copy",
    "copy_p", "cos", "div", "dynamic_slice", "dynamic_update_slice", "eq", "exp", "exp2", "expm1", "floor",
    "ge", "gt", "integer_pow", "iota", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul",
    "ne", "neg", "not", "or", "pad", "pow", "rem", "reshape", "rsqrt", "select_n", "shift_left",
    "shift_right_logical", "sign", "sin", "slice", "split", "sqrt", "square", "squeeze", "stack",
    "stop_gradient", "sub", "tanh", "transpose", "unstack", "xor"])
_REDUCTIONS = frozenset(["reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or"])
_CALLS = frozenset(["closed_call", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call", "jit", "pjit"])
_allowed: ContextVar[bool] = ContextVar("allowed", default=False)
_metadata: ContextVar[bool] = ContextVar("metadata", default=True)


@contextlib.contextmanager
def allow_small_calls() -> Iterator[None]:
    """Allow ``small_call`` and ``repeat`` to make small functions in what is traced within.

    Use it for programs whose data are all arguments. XLA splits off and simplifies constants when it compiles, and the
    remaining function may contain operations that a small function cannot contain.
    """
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


@contextlib.contextmanager
def call_metadata(is_used: bool) -> Iterator[None]:
    """Whether what is traced within may use call metadata.

    Without it ``repeat``, ``small_call`` and ``no_inline`` are plain.
    """
    token = _metadata.set(is_used)
    try:
        yield
    finally:
        _metadata.reset(token)


def _may_use_metadata() -> bool:
    return _metadata.get() and supports_call_metadata()


def repeat(total: Int[Array, ""], step: Callable[[Array, State], State], state: State) -> State:
    """``jax.lax.fori_loop(0, total, step, state)``, compiled into a small function where that is possible and faster.

    That is so within ``allow_small_calls()``, on a CPU, not under ``vmap``, if the step is elemental (``is_elemental``)
    and its results are not tiny.
    """
    if not _allowed.get() or not _may_use_metadata():
        plain: State = jax.lax.fori_loop(0, total, step, state)
        return plain
    body, closed = convert_closure(lambda both: step(*both), (jnp.zeros_like(total), state))

    def loop(total: Array, consts: list[Any], state: State) -> State:
        last: State = jax.lax.fori_loop(0, total, lambda i, s: body(consts, (i, s)), state)
        return last

    if not _is_profitable(closed.jaxpr) or _has_large_constant(closed, state):
        return loop(total, closed.consts, state)

    @jax.custom_batching.custom_vmap
    def run(total: Array, consts: list[Any], state: State) -> State:
        last: State = _call_as_small_function(loop, total, consts, state)
        return last

    @run.def_vmap
    def batched(size: int, is_batched: tuple[Any, ...], *args: Any) -> tuple[State, Any]:
        axes = jax.tree.map(lambda b: 0 if b else None, tuple(is_batched))
        return jax.vmap(loop, axes, axis_size=size)(*args), jax.tree.map(lambda _: True, state)

    result: State = run(total, closed.consts, state)
    return result


def small_call(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f``, compiled into a small function where that is possible and faster.

    That is so within ``allow_small_calls()``, on a CPU, if ``f`` is elemental (``is_elemental``) and has no sums or
    products of matrices, which ``vmap`` would enlarge, its results are not tiny, and XLA would not split its work among
    threads.
    """
    def call(*args: Any) -> Any:
        if not _allowed.get() or not _may_use_metadata():
            return f(*args)
        closed = jax.make_jaxpr(f)(*args)
        is_small = (_is_profitable(closed.jaxpr) and _is_single_threaded(closed.jaxpr)
                    and not _has_sums(closed.jaxpr) and not _has_large_constant(closed, args))
        return _call_as_small_function(f, *args) if is_small else f(*args)

    return call


def no_inline(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f``, on a CPU as a call that XLA does not inline.

    XLA otherwise fuses the call with each of its readers, and computes the results again for each of them.
    """
    return lambda *args: _with_xla_metadata(_NO_INLINE, f, *args) if _may_use_metadata() else f(*args)


def _call_as_small_function(f: Callable[..., Any], *args: Any) -> Any:
    """Call ``f`` as a small function, or plainly where an argument has no entries.

    One entry of every argument is a further result. Without them XLA aborts when it simplifies the function and finds
    that an argument is not used. The barrier hides that these results are not used.
    """
    if any(leaf.size == 0 for leaf in jax.tree.leaves(args)):
        return f(*args)

    def call(*args: Any) -> Any:
        return f(*args), [jax.lax.slice(leaf, (0,) * leaf.ndim, (1,) * leaf.ndim) for leaf in jax.tree.leaves(args)]

    result = _with_xla_metadata(_SMALL_CALL, call, *args)
    return jax.lax.optimization_barrier(result)[0]  # type: ignore[no-untyped-call]


def _with_xla_metadata(attributes: dict[str, str], f: Callable[..., Any], *args: Any) -> Any:
    """A call of ``f`` that has these attributes; the operations inside of it have not."""
    return set_xla_metadata(jax.jit(f)(*args), **attributes)  # type: ignore[no-untyped-call]


def convert_closure(f: Callable[[State], Any], state: State) -> tuple[Callable[[list[Any], State], Any], ClosedJaxpr]:
    """``f`` as a function of its closed-over arrays and the state, and its program with these arrays."""
    closed, shape = jax.make_jaxpr(f, return_shape=True)(state)

    def call(consts: list[Any], state: State) -> Any:
        leaves = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, consts))(*jax.tree.leaves(state))
        return jax.tree.unflatten(jax.tree.structure(shape), leaves)

    return call, closed


def is_elemental(jaxpr: Jaxpr) -> bool:
    """Whether XLA compiles the program without calling a library: no large reductions, matrix products or loops."""
    return all(_is_elemental_equation(equation) for equation in jaxpr.eqns)


def _is_elemental_equation(equation: Any) -> bool:
    name = equation.primitive.name
    if name in _ELEMENTAL:
        return True
    if name in _REDUCTIONS:
        return bool(equation.invars[0].aval.size <= _MAX_REDUCTION_SIZE)
    if name == "dot_general":
        return _is_elemental_product(*(v.aval for v in (*equation.invars, *equation.outvars)))
    return name in _CALLS and all(map(is_elemental, inner_jaxprs(equation)))


def _is_elemental_product(a: Any, b: Any, result: Any) -> bool:
    """Whether a product is one of a matrix and a vector, or a small sum."""
    ranks = sorted([a.ndim, b.ndim])  # with one result, the sum has as many terms as ``a`` has entries
    if ranks == [1, 2]:
        return bool(result.size > 1 or a.size < _LIBRARY_REDUCTION_SIZE)
    return ranks == [1, 1] and bool(a.size <= _MAX_REDUCTION_SIZE)


def _has_sums(jaxpr: Jaxpr) -> bool:
    return any(equation.primitive.name in (*_REDUCTIONS, "dot_general") or any(map(_has_sums, inner_jaxprs(equation)))
               for equation in jaxpr.eqns)


def _has_large_constant(closed: ClosedJaxpr, args: Any) -> bool:
    """Whether a large array is known when the program is traced: in the program, or as an argument of it."""
    values = (*_constants(closed), *jax.tree.leaves(args))
    return any(not isinstance(value, jax.core.Tracer) and np.size(value) > _MAX_CONSTANT_SIZE for value in values)


def _constants(closed: ClosedJaxpr) -> Iterator[Any]:
    yield from closed.consts
    for equation in closed.jaxpr.eqns:
        for inner in programs(equation):
            yield from _constants(inner)


def _is_profitable(jaxpr: Jaxpr) -> bool:
    return is_elemental(jaxpr) and _computed_bytes(jaxpr) >= _MIN_RESULT_BYTES


def _computed_bytes(jaxpr: Jaxpr) -> int:
    """Bytes of the results, without arguments that are returned unchanged."""
    arguments = {*jaxpr.invars, *jaxpr.constvars}
    results: list[Any] = [v.aval for v in jaxpr.outvars if isinstance(v, Var) and v not in arguments]
    return sum(map(_bytes, results))


def _is_single_threaded(jaxpr: Jaxpr) -> bool:
    """Whether XLA would run all of the program in one thread; otherwise a small call outside of a loop does not
    compile.

    XLA uses several threads for large results, and for programs that compute more numbers than they read and write
    bytes.
    """
    results: list[Any] = [v.aval for equation in jaxpr.eqns for v in equation.outvars]
    moved: list[Any] = [v.aval for v in (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars)]
    return (all(_bytes(aval) < _PARALLEL_BYTES for aval in results)
            and sum(aval.size for aval in results) <= sum(map(_bytes, moved)))


def _bytes(aval: Any) -> int:
    return int(aval.size * aval.dtype.itemsize)
