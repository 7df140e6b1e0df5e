"""Channels-last layouts that are carried from one operation to the next, so that transposes cancel.

``convolution`` computes convolutions channels-last. Most networks are written channels-first, so an array would be
transposed before and after each convolution. Here the result of a convolution stays channels-last, and the operations
that follow (elementwise ones, reductions, reshapes, broadcasts, pooling) work on the array as it is stored, up to an
operation that is not known. The walk changes neither the operations nor their order, only the order of axes.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jaxtyping import Array

from xla_cpu_rewrites.passes import Pass
from xla_cpu_rewrites.programs import CALLS, bind, evaluate, programs
from xla_cpu_rewrites.values import Dimensions, Factor, Value, as_value, common_sizes, from_order, parts_of, plain

__all__ = ["ELEMENTWISE", "RESHAPES", "carry_equation", "carry_layouts"]

ELEMENTWISE = frozenset([
    "abs", "add", "add_any", "and", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "copy_p", "cos", "div",
    "eq", "erf", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p",
    "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow", "rem", "round", "rsqrt", "select_n", "sign",
    "sin", "sqrt", "square", "sub", "tan", "tanh", "xor"])
_REDUCTIONS = frozenset(["reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum"])
RESHAPES = frozenset(["expand_dims", "reshape", "squeeze"])
_WINDOWED = frozenset(["reduce_window_max", "reduce_window_min", "reduce_window_sum", "select_and_gather_add",
                       "select_and_scatter_add"])
_CONVOLUTION = "conv_general_dilated"
# A broadcast is not stored: the operations that read it broadcast in the layout of their other operands.
_SOURCES = frozenset([_CONVOLUTION, "broadcast_in_dim", *_WINDOWED])
# Parameters with an entry for each dimension.
_PER_DIMENSION = {
    **dict.fromkeys(_WINDOWED, ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")),
    "pad": ("padding_config",), "slice": ("start_indices", "limit_indices", "strides")}


def _find_windows(jaxpr: Jaxpr) -> Iterator[Sequence[Any]]:
    """The convolutions and the pooling of programs without empty arrays."""
    if any(0 in getattr(v.aval, "shape", ()) for equation in jaxpr.eqns for v in (*equation.invars, *equation.outvars)):
        return
    for equation in jaxpr.eqns:
        if equation.primitive.name == _CONVOLUTION or equation.primitive.name in _WINDOWED:
            yield [v.aval for v in equation.invars]
        for closed in programs(equation):
            yield from _find_windows(closed.jaxpr)


def carry_equation(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    """The results of an equation, each an array or a ``Value``."""
    name = equation.primitive.name
    if name in CALLS:
        return evaluate(equation.params["jaxpr"], operands, carry_equation)
    operands = [x.array if isinstance(x, Value) and not x.dimensions else x for x in operands]
    if name == "split" and isinstance(operands[0], Value):
        return _split(equation, operands[0])
    if name in _SOURCES or any(isinstance(x, Value) for x in operands):
        result = _carry(equation, operands)
        if result is not None:
            return [result]
    return bind(equation, plain(operands), carry_layouts)


carry_layouts = Pass(_find_windows, lambda jaxpr, args: carry_equation)


def _carry(equation: JaxprEqn, operands: list[Any]) -> Value | None:
    """The result of an operation in the layout of its operands, or None if it has to have plain operands."""
    name, params = equation.primitive.name, equation.params
    values = [*map(as_value, operands)]
    operation: Callable[..., Any] = equation.primitive.bind
    result: Any = equation.outvars[0].aval
    if name in ELEMENTWISE or _is_elementwise_call(equation):
        # Operands may have dimensions of size 1 that the result has not.
        expanded = [_broadcast(v, result.shape, range(len(v.dimensions))) if v.dimensions else v for v in values]
        return _elementwise(equation, operands, expanded)
    if name in _REDUCTIONS:
        return _reduce(lambda array, axes: operation(array, **params | {"axes": axes}), values[0], params["axes"])
    if name == "transpose":
        return _transposed(values[0], params["permutation"])
    if name in RESHAPES:  # the batching of a reshape may also transpose
        order = params["dimensions"] if name == "reshape" else None
        return _reshape_value(values[0] if order is None else _transposed(values[0], order), result.shape)
    if name == "broadcast_in_dim":
        return _broadcast(values[0], params["shape"], params["broadcast_dimensions"]) if len(values) == 1 else None
    if name == _CONVOLUTION:
        return _convolve(operation, values, params)
    if name in _PER_DIMENSION:
        order = max((v for v in values if v.dimensions), key=lambda v: v.array.size).order()
        arrays = [v.in_order(order) if v.dimensions else x for v, x in zip(values, operands, strict=True)]
        permuted = {key: tuple(params[key][d] for d in order) for key in _PER_DIMENSION[name]
                    if params.get(key) is not None}
        return from_order(operation(*arrays, **params | permuted), order)
    if name == "concatenate":
        order = max(values, key=lambda v: v.array.size).order()
        arrays = [v.in_order(order) for v in values]
        return from_order(operation(*arrays, **params | {"dimension": order.index(params["dimension"])}), order)
    return None


def _transposed(value: Value, order: Sequence[int]) -> Value:
    return Value(value.array, tuple(value.dimensions[d] for d in order))


def _split(equation: JaxprEqn, value: Value) -> list[Any]:
    """The parts of a value along one of its dimensions."""
    order = value.order()
    split: Callable[..., list[Array]] = equation.primitive.bind
    parts = split(value.in_order(order), **equation.params | {"axis": order.index(equation.params["axis"])})
    return [from_order(part, order) for part in parts]


def _elementwise(equation: JaxprEqn, operands: Sequence[Any], values: Sequence[Value]) -> Value | None:
    """The operation in the layout of the largest operand; scalars are operands as they are."""
    shaped = [i for i, v in enumerate(values) if v.dimensions]
    sizes = [common_sizes(*of_dimension) for of_dimension in zip(*(values[i].sizes for i in shaped), strict=True)]
    if any(of_dimension is None for of_dimension in sizes):
        return None
    split = {i: values[i].split([of_dimension or [] for of_dimension in sizes]) for i in shaped}
    # The largest operand; among equal ones, one that is stored in another order.
    main = max(split.values(), key=lambda v: (v.array.size, v.stored() != sorted(v.stored())))
    positions = main.stored()
    others = dict.fromkeys(p for v in split.values() for p in v.stored() if p not in positions)
    # Of a row and a column that are stored as they are, the result is as well.
    positions = sorted([*others, *positions]) if positions == sorted(positions) else [*others, *positions]
    arrays = [split[i].arrange(positions) if i in split else x for i, x in enumerate(operands)]
    axes = {position: axis for axis, position in enumerate(positions)}
    dimensions = tuple(tuple(Factor(factor.size, axes.get((d, j))) for j, factor in enumerate(factors))
                       for d, factors in enumerate(main.dimensions))
    if equation.primitive.name in ELEMENTWISE:
        return Value(bind(equation, arrays)[0], dimensions)
    return Value(_call_elementwise(equation, arrays, dimensions), dimensions)


def _is_elementwise_call(equation: JaxprEqn) -> bool:
    """Whether it is a call of an activation function: one with a rule of its own for its derivative."""
    if equation.primitive.name != "custom_jvp_call" or len(equation.outvars) != 1:
        return False
    return _is_elementwise(equation.params["call_jaxpr"], getattr(equation.outvars[0].aval, "shape", ()))


def _is_elementwise(closed: ClosedJaxpr, shape: tuple[int, ...]) -> bool:
    avals: list[Any] = [v.aval for v in (*closed.jaxpr.invars, *closed.jaxpr.outvars)]
    return not closed.consts and all(aval.shape in ((), shape) for aval in avals) and all(
        equation.primitive.name in ELEMENTWISE or (
            equation.primitive.name in CALLS and _is_elementwise(equation.params["jaxpr"], shape))
        for equation in closed.jaxpr.eqns)


def _call_elementwise(equation: JaxprEqn, arrays: Sequence[Any], dimensions: Dimensions) -> Array:
    """The call of an activation function, with arrays that are stored in another order."""
    layout = Value(jnp.zeros(()), dimensions)
    closed = equation.params["call_jaxpr"]

    def plain(arrays: Sequence[Any]) -> list[Any]:
        return [Value(x, dimensions).plain() if np.ndim(x) else x for x in arrays]

    def stored(x: Array) -> Array:
        positions = sorted(((d, j) for d, factors in enumerate(dimensions) for j, factor in enumerate(factors)
                            if factor.axis is not None), key=lambda p: dimensions[p[0]][p[1]].axis or 0)
        return from_order(x, range(x.ndim)).split(layout.sizes).arrange(positions)

    @jax.custom_jvp
    def call(*arrays: Any) -> Array:
        result: Array = evaluate(closed, arrays, carry_equation)[0]
        return result

    @call.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
        def original(*args: Any) -> Array:
            result: Array = bind(equation, args)[0]
            return result

        value, tangent = jax.jvp(original, plain(primals), plain(tangents))
        return stored(value), stored(tangent)

    result: Array = call(*arrays)
    return result


def _reduce(reduce: Callable[[Array, tuple[int, ...]], Array], value: Value, dimensions: Sequence[int]) -> Value:
    stored = value.stored()
    missing = [(d, j) for d in dimensions for j in range(len(value.dimensions[d])) if (d, j) not in stored]
    array, positions = value.arrange([*missing, *stored]), [*missing, *stored]
    axes = [axis for axis, (d, _) in enumerate(positions) if d in dimensions]
    array = reduce(array, tuple(axes))
    remaining = {position: axis for axis, position in enumerate(p for p in positions if p[0] not in dimensions)}
    return Value(array, tuple(tuple(Factor(factor.size, remaining.get((d, j))) for j, factor in enumerate(factors))
                               for d, factors in enumerate(value.dimensions) if d not in dimensions))


def _reshape_value(value: Value, shape: Sequence[int]) -> Value | None:
    factors = tuple(factor for of_dimension in value.dimensions for factor in of_dimension)
    sizes = common_sizes([factor.size for factor in factors], [n for n in shape if n > 1])
    if sizes is None:
        return None
    split = Value(value.array, (factors,)).split([sizes])
    targets = [Factor(n, None) for n in shape if n > 1]
    of_target = iter(parts_of(targets, sizes))
    remaining = iter(split.dimensions[0])
    return Value(split.array, tuple(tuple(next(remaining) for _ in next(of_target)) if n > 1 else () for n in shape))


def _broadcast(value: Value, shape: Sequence[int], dimensions: Sequence[int]) -> Value:
    sources = dict(zip(dimensions, value.dimensions, strict=True))
    return Value(value.array, tuple(sources.get(d) or ((Factor(n, None),) if n > 1 else ())
                                     for d, n in enumerate(shape)))


def _convolve(operation: Callable[..., Array], values: Sequence[Value], params: dict[str, Any]) -> Value:
    """The convolution of the operands as they are stored, with a result of the order batch, space, features."""
    orders = [v.order() for v in values]
    lhs_spec, rhs_spec, out_spec = params["dimension_numbers"]
    specs = [tuple(order.index(d) for d in spec) for order, spec in zip(orders, (lhs_spec, rhs_spec), strict=True)]
    rank = len(out_spec)
    numbers = lax.ConvDimensionNumbers(specs[0], specs[1], (0, rank - 1, *range(1, rank - 1)))
    arrays = [v.in_order(order) for v, order in zip(values, orders, strict=True)]
    result = operation(*arrays, **params | {"dimension_numbers": numbers})
    return from_order(result, (out_spec[0], *out_spec[2:], out_spec[1]))
