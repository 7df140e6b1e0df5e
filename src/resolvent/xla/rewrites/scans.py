"""Sums over the steps of a scan, as one matrix product after the scan.

The gradient of a recurrent network by its weights is a sum over time of products of two matrices. JAX adds the product
of each step to a carried sum, so every step reads and writes an array of the size of the weights. Here a step stores
the two factors, and the contraction of the product after the scan includes time. Only the order of the additions
differs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from jaxtyping import Array

from resolvent.xla.rewrites.evaluation import bind, evaluate, programs, trace

__all__ = ["factors_of_sums", "sum_after_scans"]

_MIN_BYTES = 2**18  # of a product. Smaller ones stay in a core's second-level cache between steps.


class _Dimensions(NamedTuple):
    """Dimensions of a factor of a product."""

    contracted: tuple[int, ...]
    batch: tuple[int, ...]

    def mapped(self, f: Callable[[int], int]) -> "_Dimensions":
        return _Dimensions(tuple(map(f, self.contracted)), tuple(map(f, self.batch)))


@dataclass(frozen=True)
class _Sum:
    """A carried value to which each step adds a product.

    Attributes:
        number: of the value among the carried ones.
        chain: the product and the transpositions of its result, in order.
        addition: the equation that adds it.
        factors: of the product, before they are transposed.
        dimensions: the contracted ones and the batch of each factor.
    """

    number: int
    chain: tuple[JaxprEqn, ...]
    addition: JaxprEqn
    factors: tuple[Any, Any]
    dimensions: tuple[_Dimensions, _Dimensions]


def sum_after_scans(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with sums of products after its scans; the program itself if there are none."""
    if next(factors_of_sums(closed.jaxpr), None) is None:
        return closed
    return trace(closed, lambda *args: evaluate(closed, args, _evaluate))


def factors_of_sums(jaxpr: Jaxpr) -> Iterator[tuple[Any, ...]]:
    """The shapes of the factors of each product that is summed after a scan."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield from (tuple(v.aval for v in s.chain[0].invars) for s in _sums(equation))
        for closed in programs(equation):
            yield from factors_of_sums(closed.jaxpr)


def _evaluate(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    sums = _sums(equation) if equation.primitive.name == "scan" else []
    return _scan(equation, sums, operands) if sums else bind(equation, operands, sum_after_scans)


def _sums(equation: JaxprEqn) -> list[_Sum]:
    """The sums of products among the carried values of a scan whose factors are smaller than the product."""
    body: Jaxpr = equation.params["jaxpr"].jaxpr
    consts, carried = equation.params["num_consts"], equation.params["num_carry"]
    uses: dict[Any, int] = {}
    for v in (*body.outvars, *(v for inner in body.eqns for v in inner.invars)):
        if isinstance(v, Var):
            uses[v] = uses.get(v, 0) + 1
    producers = {v: inner for inner in body.eqns for v in inner.outvars}
    sums = []
    for number in range(carried):
        before, after = body.invars[consts + number], body.outvars[number]
        addition = producers.get(after) if isinstance(after, Var) else None
        if (addition is None or addition.primitive.name not in ("add", "add_any") or uses[after] != 1
                or uses.get(before) != 1 or before not in addition.invars):
            continue
        term = next((v for v in addition.invars if v is not before), None)
        chain = _chain(term, producers, uses)
        if chain and _is_profitable(chain[0]):
            contracted, batches = chain[0].params["dimension_numbers"]
            a, b = (_untransposed(v, _Dimensions(*dimensions), producers) for v, *dimensions
                    in zip(chain[0].invars, contracted, batches, strict=True))
            sums.append(_Sum(number, chain, addition, (a[0], b[0]), (a[1], b[1])))
    return sums


def _untransposed(factor: Any, dimensions: _Dimensions, producers: dict[Any, JaxprEqn]) -> tuple[Any, _Dimensions]:
    """The matrix of which a factor is the transposed one, or the factor itself.

    With it, the numbers that are stored for all steps have the same order as in the product after the scan.
    """
    equation = producers.get(factor)
    if equation is None or equation.primitive.name != "transpose" or factor.aval.ndim != 2:
        return factor, dimensions
    return equation.invars[0], dimensions.mapped(lambda axis: 1 - axis)


def _chain(term: Any, producers: dict[Any, JaxprEqn], uses: dict[Any, int]) -> tuple[JaxprEqn, ...]:
    """The product and the transpositions whose only result is this term; nothing if it is another operation."""
    if not isinstance(term, Var) or term not in producers or uses[term] != 1:
        return ()
    equation = producers[term]
    if equation.primitive.name == "dot_general":
        return (equation,)
    if equation.primitive.name not in ("transpose", "reshape", "squeeze"):
        return ()
    chain = _chain(equation.invars[0], producers, uses)
    return (*chain, equation) if chain else ()


def _is_profitable(product: JaxprEqn) -> bool:
    """Whether storing the factors is cheaper than adding a product in each step."""
    avals: list[Any] = [v.aval for v in (*product.invars, *product.outvars)]
    return bool(all(isinstance(v, Var) for v in product.invars) and avals[0].size + avals[1].size < avals[2].size
                and avals[2].size * avals[2].dtype.itemsize >= _MIN_BYTES)


def _scan(equation: JaxprEqn, sums: Sequence[_Sum], operands: Sequence[Any]) -> list[Array]:
    """The results of a scan with some of its sums after it."""
    params = equation.params
    closed, consts, carried = params["jaxpr"], params["num_consts"], params["num_carry"]
    body: Jaxpr = closed.jaxpr
    removed = {id(inner) for s in sums for inner in (*s.chain, s.addition)}
    numbers = {s.number for s in sums}
    remaining = [number for number in range(carried) if number not in numbers]
    inputs = body.invars[consts + carried:]
    of_inputs = dict(zip(inputs, operands[consts + carried:], strict=True))
    # Factors that differ between steps and are no inputs of the scan are further results of it.
    stored = [v for v in dict.fromkeys(v for s in sums for v in s.factors) if v not in of_inputs]
    step_body = body.replace(  # type: ignore[no-untyped-call]
        eqns=[inner for inner in body.eqns if id(inner) not in removed],
        invars=[*body.invars[:consts], *(body.invars[consts + number] for number in remaining), *inputs],
        outvars=[*(body.outvars[number] for number in remaining), *body.outvars[carried:], *stored],
        debug_info=body.debug_info.with_unknown_names())

    def step(carry: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
        results = evaluate(ClosedJaxpr(step_body, closed.consts), [*operands[:consts], *carry, *x], _evaluate)
        return results[:len(remaining)], results[len(remaining):]

    last, outputs = lax.scan(step, [operands[consts + number] for number in remaining], list(of_inputs.values()),
                             length=params["length"], reverse=params["reverse"], unroll=params["unroll"])
    split = len(outputs) - len(stored)
    factors = {**of_inputs, **dict(zip(stored, outputs[split:], strict=True))}
    results: dict[int, Array] = dict(zip(remaining, last, strict=True))
    for s in sums:
        results[s.number] = jnp.add(operands[consts + s.number], _product(s, *(factors[v] for v in s.factors)))
    return [*(results[number] for number in range(carried)), *outputs[:split]]


def _product(s: _Sum, a: Array, b: Array) -> Array:
    """The sum of the products of all steps."""
    product, *transpositions = s.chain
    of_a, of_b = (dimensions.mapped(lambda axis: axis + 1) for dimensions in s.dimensions)
    numbers = ((0, *of_a.contracted), (0, *of_b.contracted)), (of_a.batch, of_b.batch)
    result = bind(product.replace(params=product.params | {"dimension_numbers": numbers}), [a, b])
    for equation in transpositions:
        result = bind(equation, result)
    total: Array = result[0]
    return total
