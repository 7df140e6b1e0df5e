"""Products of the steps of a scan with the same weights, with the weights as the second factor and not transposed.

A recurrent network that is written for one sample and batched computes the product of the weights [N, K] and the
transposed state of the minibatch, with the result [N, B]. The activation functions then read it against its order, and
the library has to transpose the weights in each step. Here the weights are transposed once, before the scan, and each
step computes [B, K] [K, N]. Its result, and the operations that follow, keep this order of the axes: see ``layouts``.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jaxtyping import Array

from resolvent.xla.rewrites.evaluation import bind, evaluate, programs, trace
from resolvent.xla.rewrites.layouts import carry_equation, plain
from resolvent.xla.rewrites.values import Value, from_order

__all__ = ["orient_products"]


def orient_products(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with oriented products in its scans; the program itself if there are none."""
    if not _has_products(closed.jaxpr):
        return closed
    return trace(closed, lambda *args: evaluate(closed, args, _evaluate))


def _has_products(jaxpr: Jaxpr) -> bool:
    return any((equation.primitive.name == "scan"
                and _weights(equation.params["jaxpr"].jaxpr, equation.params["num_consts"]))
               or any(_has_products(closed.jaxpr) for closed in programs(equation)) for equation in jaxpr.eqns)


def _weights(body: Jaxpr, consts: int) -> dict[int, int]:
    """id of a product of two matrices in the body of a scan -> which of its factors is the same in all steps."""
    constants, weights = body.invars[:consts], {}
    for equation in body.eqns:
        if equation.primitive.name == "dot_general" and _ranks(equation) == [2, 2]:
            are_constant = [v in constants for v in equation.invars]
            contracted, batch = equation.params["dimension_numbers"]
            if sum(are_constant) == 1 and batch == ((), ()) and tuple(map(len, contracted)) == (1, 1):
                weights[id(equation)] = are_constant.index(True)
    return weights


def _ranks(equation: JaxprEqn) -> list[int]:
    avals: list[Any] = [v.aval for v in equation.invars]
    return [len(aval.shape) for aval in avals]


def _evaluate(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    if equation.primitive.name != "scan" or not _has_products(Jaxpr((), (), (), [equation])):
        return bind(equation, operands, orient_products)
    return _scan(equation.params, operands)


def _scan(params: dict[str, Any], operands: Sequence[Any]) -> list[Array]:
    """The results of a scan whose products are oriented."""
    closed, consts, carried = orient_products(params["jaxpr"]), params["num_consts"], params["num_carry"]
    numbers = _weights(closed.jaxpr, consts)
    products = {id(equation): equation for equation in closed.jaxpr.eqns if id(equation) in numbers}
    of_constant = dict(zip(closed.jaxpr.invars, operands[:consts], strict=False))
    oriented = {}
    for key, equation in products.items():
        number = numbers[key]
        contracted = equation.params["dimension_numbers"][0][number][0]
        weights = of_constant[equation.invars[number]]
        oriented[key] = jnp.transpose(weights) if contracted == 1 else weights

    def rule(equation: JaxprEqn, values: list[Any]) -> Sequence[Any]:
        if (number := numbers.get(id(equation))) is not None:
            return [_product(equation, number, values[1 - number], oriented[id(equation)])]
        if equation.primitive.name == "dot_general":
            return [_product_as_stored(equation, values)]
        if equation.primitive.name == "transpose":
            values = [_as_value(x) for x in values]
        return carry_equation(equation, values)

    def step(carry: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
        results = plain(evaluate(closed, [*operands[:consts], *carry, *x], rule))
        return results[:carried], results[carried:]

    last, outputs = lax.scan(step, list(operands[consts:consts + carried]), list(operands[consts + carried:]),
                             length=params["length"], reverse=params["reverse"], unroll=params["unroll"])
    return [*last, *outputs]


def _product(equation: JaxprEqn, number: int, factor: Any, weights: Array) -> Value:
    """The product [B, N] of the other factor [B, K] and the weights [K, N], as a value of the original shape."""
    contracted = equation.params["dimension_numbers"][0][1 - number][0]
    rows = _as_value(factor).in_order([1 - contracted, contracted])
    product = _dot_general(equation, [rows, weights], (((1,), (0,)), ((), ())))
    return from_order(product, (1, 0) if number == 0 else (0, 1))


def _product_as_stored(equation: JaxprEqn, factors: Sequence[Any]) -> Array:
    """A product whose factors are not transposed before it."""
    values = [_as_value(x) for x in factors]
    orders = [value.order() for value in values]
    numbers = tuple(tuple(tuple(map(order.index, axes)) for order, axes in zip(orders, pair, strict=True))
                    for pair in equation.params["dimension_numbers"])
    if any(_free(order, pair) != sorted(_free(order, pair)) for order, pair in zip(
            orders, zip(*equation.params["dimension_numbers"], strict=True), strict=True)):
        return _dot_general(equation, plain(values), equation.params["dimension_numbers"])
    return _dot_general(equation, [v.in_order(order) for v, order in zip(values, orders, strict=True)], numbers)


def _free(order: Sequence[int], pair: Sequence[Sequence[int]]) -> list[int]:
    """The dimensions that are neither contracted nor a part of the batch, as they are stored."""
    return [d for d in order if d not in (*pair[0], *pair[1])]


def _dot_general(equation: JaxprEqn, factors: Sequence[Array], numbers: Any) -> Array:
    result: Array = bind(equation.replace(params=equation.params | {"dimension_numbers": numbers}), factors)[0]
    return result


def _as_value(x: Any) -> Value:
    return x if isinstance(x, Value) else from_order(jnp.asarray(x), range(np.ndim(x)))
