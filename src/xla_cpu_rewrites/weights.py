"""Products of weights and a minibatch, with the weights as the second factor.

A layer that is written for one sample and batched computes the product of the weights [N, K] and the transposed
minibatch [K, B], with the result [N, B]. The operations that follow then read this result in another order than that in
memory. This rewrite computes [B, K] [K, N] instead. The result and the operations that follow keep this order of the
axes: see ``layouts``. A scan uses the same weights in all steps, so they are transposed once, before the scan.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn
from jaxtyping import Array

from xla_cpu_rewrites.layouts import carry_equation
from xla_cpu_rewrites.passes import Pass
from xla_cpu_rewrites.programs import CALLS, Scan, bind, evaluate
from xla_cpu_rewrites.values import Value, as_value, from_order, plain


def _find_products(jaxpr: Jaxpr, weights: Sequence[Any] | None = None, *,
                   is_scan: bool = False) -> Iterator[Sequence[Any]]:
    """The factors of each product whose order is changed, also in the scans of the program.

    The weights of a program are its arguments; the weights of a scan are the arrays that are the same in all steps.

    Args:
        weights: its weights; default: its arguments.
        is_scan: whether the program is the body of a scan.
    """
    weights = jaxpr.invars if weights is None else weights
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        inner: Any = equation.params.get("jaxpr")
        if name == "dot_general":
            if _number_of_weights(equation, [v in weights for v in equation.invars], is_scan=is_scan) is not None:
                yield [v.aval for v in equation.invars]
        elif name == "scan":
            constants = Scan(equation.params).divide(inner.jaxpr.invars)[0]
            yield from _find_products(inner.jaxpr, constants, is_scan=True)
        elif name in CALLS:
            of_call = [v for v, operand in zip(inner.jaxpr.invars, equation.invars, strict=True) if operand in weights]
            yield from _find_products(inner.jaxpr, of_call, is_scan=is_scan)


def _number_of_weights(equation: JaxprEqn, are_weights: Sequence[bool], *, is_scan: bool) -> int | None:
    """The position of the weights in a product, 0 or 1; None if making them the second factor saves no time."""
    contracted, batch = equation.params["dimension_numbers"]
    if sum(are_weights) != 1 or batch != ((), ()) or tuple(map(len, contracted)) != (1, 1):
        return None
    number = are_weights.index(True)
    avals: list[Any] = [v.aval for v in equation.invars]
    if len(avals[number].shape) != 2 or len(avals[1 - number].shape) < 2:
        return None
    rows = avals[1 - number].size // avals[1 - number].shape[contracted[1 - number][0]]
    columns = avals[number].shape[1 - contracted[number][0]]
    # A batched layer that is written for one sample. With few rows, transposing the weights takes longer than it saves.
    is_batched = number == 0 and contracted == ((1,), (len(avals[1].shape) - 1,)) and rows >= columns
    return number if is_scan or is_batched else None


class _Orientation:
    """The rule for the equations of a program: it changes products, and passes layouts from equation to equation.

    Args:
        weights: arrays; those with two axes are weights.
        is_scan: whether the program is the body of a scan, which uses the same weights in all steps.
    """

    def __init__(self, weights: Sequence[Any], *, is_scan: bool) -> None:
        self._is_scan = is_scan
        self._weights = {id(array): array for array in weights if np.ndim(array) == 2}
        self._transposed: dict[int, Array] = {}

    def transpose_weights(self, jaxpr: Jaxpr, operands: Sequence[Any]) -> None:
        """Transpose the weights of a scan's body, outside of the body."""
        values: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=False))
        for equation in jaxpr.eqns:
            if equation.primitive.name in CALLS:
                inner = [values.get(v) for v in equation.invars]
                self.transpose_weights(equation.params["jaxpr"].jaxpr, inner)
            elif equation.primitive.name == "dot_general":
                number = self._number(equation, [values.get(v) for v in equation.invars])
                if number is not None and equation.params["dimension_numbers"][0][number] == (1,):
                    weights = values[equation.invars[number]]
                    self._transposed[id(weights)] = jnp.transpose(weights)

    def __call__(self, equation: JaxprEqn, values: list[Any]) -> Sequence[Any]:
        """The results of an equation, each an array or a ``Value``."""
        name = equation.primitive.name
        if name in CALLS:
            return evaluate(equation.params["jaxpr"], values, self)
        if name == "scan":
            return _scan(Scan(equation.params), plain(values))
        if name == "dot_general":
            number = self._number(equation, values)
            return [_product_as_stored(equation, values) if number is None else self._product(equation, number, values)]
        if name == "transpose":
            values = [*map(as_value, values)]
        return carry_equation(equation, values)

    def _number(self, equation: JaxprEqn, values: Sequence[Any]) -> int | None:
        return _number_of_weights(equation, [id(x) in self._weights for x in values], is_scan=self._is_scan)

    def _product(self, equation: JaxprEqn, number: int, values: Sequence[Any]) -> Value:
        """The product [..., N] of the other factor [..., K] and the weights, as a value of the original shape."""
        contracted = equation.params["dimension_numbers"][0]
        weights, axis = values[number], contracted[number][0]
        if axis == 1 and id(weights) in self._transposed:
            weights, axis = self._transposed[id(weights)], 0
        value = as_value(values[1 - number])
        free = [d for d in value.order() if d != contracted[1 - number][0]]
        rows = value.in_order([*free, contracted[1 - number][0]])
        product = _dot_general(equation, [rows, weights], (((rows.ndim - 1,), (axis,)), ((), ())))
        # The dimensions of the result: those of the weights and of the other factor, in the order of the factors.
        positions = [sorted(free).index(d) + (number == 0) for d in free]
        return from_order(product, [*positions, 0 if number == 0 else len(free)])


orient_products = Pass(_find_products, lambda jaxpr, args: _Orientation(args, is_scan=False), "dot_general",
                       "weights as second factor")


def _scan(scan: Scan, operands: Sequence[Any]) -> list[Array]:
    """The results of a scan whose products are oriented."""
    constants, first, inputs = scan.divide(operands)
    orientation = _Orientation(constants, is_scan=True)
    orientation.transpose_weights(scan.body, constants)

    def step(carry: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
        results = plain(evaluate(scan.closed, [*constants, *carry, *x], orientation))
        return results[:scan.carried], results[scan.carried:]

    last, outputs = scan.run(step, first, inputs)
    return [*last, *outputs]


def _product_as_stored(equation: JaxprEqn, factors: Sequence[Any]) -> Array:
    """A product of the factors in their order in memory, unless this would change the order of the result's axes."""
    values = [*map(as_value, factors)]
    orders, numbers = [value.order() for value in values], equation.params["dimension_numbers"]
    for order, bound in zip(orders, zip(*numbers, strict=True), strict=True):
        free = [d for d in order if d not in (*bound[0], *bound[1])]
        if free != sorted(free):
            return _dot_general(equation, plain(values), numbers)
    stored = tuple(tuple(tuple(map(order.index, axes)) for order, axes in zip(orders, pair, strict=True))
                   for pair in numbers)
    return _dot_general(equation, [v.in_order(order) for v, order in zip(values, orders, strict=True)], stored)


def _dot_general(equation: JaxprEqn, factors: Sequence[Array], numbers: Any) -> Array:
    result: Array = bind(equation.replace(params=equation.params | {"dimension_numbers": numbers}), factors)[0]
    return result
