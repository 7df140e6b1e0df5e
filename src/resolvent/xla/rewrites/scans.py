"""Sums over the steps of a scan, as one matrix product after the scan.

The gradient of a recurrent network with respect to its weights is a sum over time of products of two matrices. JAX adds
the product of each step to a carried sum, so every step reads and writes an array of the size of the weights. After
this rewrite a step stores the two factors, and one product after the scan also contracts the time axis. Only the order
of the additions differs.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jaxtyping import Array

from resolvent.xla.rewrites.evaluation import bind, evaluate, programs, trace

__all__ = ["factors_of_sums", "sum_after_scans"]

_MIN_BYTES = 2**14  # smallest size of a product that is moved
_FEW_ROWS = 64  # with at most this many rows, the product of a step reaches only a fraction of the peak rate
_barrier: Callable[[Array], Array] = lax.optimization_barrier  # a typed name: JAX's function has no types


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
        number: position of the value among the carried values.
        chain: the product and the transpositions of its result, in order.
        addition: the equation that adds the product.
        factors: the factors of the product, before they are transposed.
        dimensions: the contracted dimensions and the batch dimensions of each factor.
    """

    number: int
    chain: tuple[JaxprEqn, ...]
    addition: JaxprEqn
    factors: tuple[Any, Any]
    dimensions: tuple[_Dimensions, _Dimensions]


@dataclass(frozen=True)
class _Result:
    """A result of each step that no step reads: a product with one factor that is the same in all steps.

    Attributes:
        number: position of the result among the results of a step.
        chain: the product and the transpositions of its result, in order.
        constant: position of the factor that is the same in all steps, 0 or 1.
    """

    number: int
    chain: tuple[JaxprEqn, ...]
    constant: int

    @property
    def factors(self) -> tuple[Any, ...]:
        """The factor that differs between steps."""
        return (self.chain[0].invars[1 - self.constant],)


class _Body:
    """The body of a scan: the equation that computes each value, and the number of times that it is read."""

    def __init__(self, equation: JaxprEqn) -> None:
        params = equation.params
        self.jaxpr: Jaxpr = params["jaxpr"].jaxpr
        self.consts, self.carried = params["num_consts"], params["num_carry"]
        self.uses = Counter(v for v in (*self.jaxpr.outvars, *(v for inner in self.jaxpr.eqns for v in inner.invars))
                            if isinstance(v, Var))
        self.producers: dict[Any, JaxprEqn] = {v: inner for inner in self.jaxpr.eqns for v in inner.outvars}

    @property
    def constants(self) -> list[Any]:
        """The values that are the same in all steps."""
        return self.jaxpr.invars[:self.consts]


def sum_after_scans(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with products after its scans instead of in each step; the program itself if there are none."""
    if next(factors_of_sums(closed.jaxpr), None) is None:
        return closed
    return trace(closed, lambda *args: evaluate(closed, args, _evaluate))


def factors_of_sums(jaxpr: Jaxpr) -> Iterator[tuple[Any, ...]]:
    """The shapes of the factors of each product that is computed after a scan."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            sums, results = _moved(equation)
            products = [s.chain[0] for s in sums] + [r.chain[0] for r in results]
            yield from (tuple(v.aval for v in product.invars) for product in products)
        for closed in programs(equation):
            yield from factors_of_sums(closed.jaxpr)


def _evaluate(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    sums, results = _moved(equation) if equation.primitive.name == "scan" else ([], [])
    return (_scan(equation, sums, results, operands) if sums or results
            else bind(equation, operands, sum_after_scans))


def _moved(equation: JaxprEqn) -> tuple[list[_Sum], list[_Result]]:
    """The products that are computed after a scan."""
    body = _Body(equation)
    sums = list(_sums(body))
    profitable = [s for s in sums if _is_profitable(s.chain[0])]
    # Factors that are stored anyway.
    stored = {*body.jaxpr.invars[body.consts + body.carried:], *body.jaxpr.outvars[body.carried:],
              *(v for s in profitable for v in s.factors)}
    sums = [s for s in sums if s in profitable or stored.issuperset(s.factors)]
    stored = stored.union(*(s.factors for s in sums))
    return sums, [r for r in _results(body) if stored.issuperset(r.factors)]


def _sums(body: _Body) -> Iterator[_Sum]:
    """The sums of products among the carried values of a scan."""
    for number in range(body.carried):
        before: Any
        after: Any
        before, after = body.jaxpr.invars[body.consts + number], body.jaxpr.outvars[number]
        addition = body.producers.get(after) if isinstance(after, Var) else None
        if (addition is None or addition.primitive.name not in ("add", "add_any") or body.uses[after] != 1
                or body.uses[before] != 1 or before not in addition.invars):
            continue
        term = next((v for v in addition.invars if v is not before), None)
        chain = _chain(term, body)
        if chain and not any(isinstance(v, Literal) or v in body.constants for v in chain[0].invars):
            contracted, batches = chain[0].params["dimension_numbers"]
            a, b = (_untransposed(v, _Dimensions(*dimensions), body.producers) for v, *dimensions
                    in zip(chain[0].invars, contracted, batches, strict=True))
            yield _Sum(number, chain, addition, (a[0], b[0]), (a[1], b[1]))


def _results(body: _Body) -> Iterator[_Result]:
    """The results of a step that are products with one factor that is the same in all steps."""
    for number, result in enumerate(body.jaxpr.outvars[body.carried:]):
        chain = _chain(result, body)
        if chain:
            are_constant = [v in body.constants for v in chain[0].invars]
            if sum(are_constant) == 1 and not any(isinstance(v, Literal) for v in chain[0].invars):
                yield _Result(number, chain, are_constant.index(True))


def _untransposed(factor: Any, dimensions: _Dimensions, producers: dict[Any, JaxprEqn]) -> tuple[Any, _Dimensions]:
    """The matrix whose transpose a factor is, or the factor itself; and the dimensions of this matrix.

    Storing the matrix for all steps keeps the numbers in the order in which the product after the scan reads them.
    """
    equation = producers.get(factor)
    if equation is None or equation.primitive.name != "transpose" or factor.aval.ndim != 2:
        return factor, dimensions
    return equation.invars[0], dimensions.mapped(lambda axis: 1 - axis)


def _chain(term: Any, body: _Body) -> tuple[JaxprEqn, ...]:
    """The product and the transpositions whose only result is this term; empty if another operation computes it."""
    if not isinstance(term, Var) or term not in body.producers or body.uses[term] != 1:
        return ()
    equation = body.producers[term]
    if equation.primitive.name == "dot_general":
        return (equation,)
    if equation.primitive.name not in ("transpose", "reshape", "squeeze"):
        return ()
    chain = _chain(equation.invars[0], body)
    return (*chain, equation) if chain else ()


def _is_profitable(product: JaxprEqn) -> bool:
    """Whether storing the factors is cheaper than adding a product in each step."""
    avals: list[Any] = [v.aval for v in (*product.invars, *product.outvars)]
    a, b, result = avals
    rows = math.prod(a.shape[axis] for axis in product.params["dimension_numbers"][0][0])
    return bool((rows <= _FEW_ROWS or a.size + b.size < result.size)
                and result.size * result.dtype.itemsize >= _MIN_BYTES)


def _scan(equation: JaxprEqn, sums: Sequence[_Sum], results: Sequence[_Result], operands: Sequence[Any]) -> list[Array]:
    """The results of a scan with some of its products after it."""
    params = equation.params
    closed, consts, carried = params["jaxpr"], params["num_consts"], params["num_carry"]
    body: Jaxpr = closed.jaxpr
    removed = {id(inner) for s in sums for inner in (*s.chain, s.addition)}
    removed |= {id(inner) for r in results for inner in r.chain}
    carries = [number for number in range(carried) if number not in {s.number for s in sums}]
    outputs = [number for number in range(len(body.outvars) - carried) if number not in {r.number for r in results}]
    inputs = body.invars[consts + carried:]
    of_all_steps: dict[Any, Array] = dict(zip(inputs, operands[consts + carried:], strict=True))
    # Factors that differ between steps and are not inputs of the scan are further results of it.
    factors = [*(v for s in sums for v in s.factors), *(v for r in results for v in r.factors)]
    stored = [v for v in dict.fromkeys(factors) if v not in of_all_steps]
    step_body = body.replace(  # type: ignore[no-untyped-call]
        eqns=[inner for inner in body.eqns if id(inner) not in removed],
        invars=[*body.invars[:consts], *(body.invars[consts + number] for number in carries), *inputs],
        outvars=[*(body.outvars[number] for number in carries), *(body.outvars[carried + i] for i in outputs), *stored],
        debug_info=body.debug_info.with_unknown_names())

    def step(carry: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
        values = evaluate(ClosedJaxpr(step_body, closed.consts), [*operands[:consts], *carry, *x], _evaluate)
        return values[:len(carries)], values[len(carries):]

    last, of_steps = lax.scan(step, [operands[consts + number] for number in carries], list(of_all_steps.values()),
                              length=params["length"], reverse=params["reverse"], unroll=params["unroll"])
    of_all_steps |= dict(zip(stored, of_steps[len(outputs):], strict=True))
    last_values: dict[int, Array] = dict(zip(carries, last, strict=True))
    for s in sums:
        total = _sum(s, *(of_all_steps[v] for v in s.factors))
        last_values[s.number] = jnp.add(operands[consts + s.number], total)
    values: dict[int, Array] = dict(zip(outputs, of_steps, strict=False))
    constants: dict[Any, Array] = dict(zip(body.invars, operands[:consts], strict=False))
    for r in results:
        constant = constants[r.chain[0].invars[r.constant]]
        values[r.number] = jax.vmap(partial(_result, r, constant))(of_all_steps[r.factors[0]])
    return [last_values[number] for number in range(carried)] + [values[number] for number in sorted(values)]


def _sum(s: _Sum, a: Array, b: Array) -> Array:
    """The sum of the products of all steps."""
    product, *transpositions = s.chain
    of_a, of_b = (dimensions.mapped(lambda axis: axis + 1) for dimensions in s.dimensions)
    # XLA's matrix product transposes the first factor, which is therefore the smaller one.
    is_swapped = a.size > b.size
    numbers = ((0, *of_a.contracted), (0, *of_b.contracted)), (of_a.batch, of_b.batch)
    if is_swapped:
        numbers = (numbers[0][::-1], numbers[1][::-1])
    result: Array = bind(product.replace(params=product.params | {"dimension_numbers": numbers}),
                         [b, a] if is_swapped else [a, b])[0]
    if is_swapped:
        batch = len(of_a.batch)
        of_second = b.ndim - 1 - len(of_b.contracted) - batch
        axes = range(batch, result.ndim)
        # Without a barrier, XLA would compute the transposed product on a slow path.
        result = jnp.transpose(_barrier(result), (*range(batch), *axes[of_second:], *axes[:of_second]))
    return _transposed(transpositions, result)


def _result(r: _Result, constant: Array, factor: Array) -> Array:
    """The product of a step."""
    product, *transpositions = r.chain
    return _transposed(transpositions, bind(product, [constant, factor] if r.constant == 0 else [factor, constant])[0])


def _transposed(transpositions: Sequence[JaxprEqn], array: Array) -> Array:
    for equation in transpositions:
        array = bind(equation, [array])[0]
    return array
