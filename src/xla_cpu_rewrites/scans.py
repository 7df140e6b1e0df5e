"""Sums over the steps of a scan, as one matrix product after the scan.

The gradient of a recurrent network with respect to its weights is a sum over time of products of two matrices. JAX adds
the product of each step to a carried sum, so every step reads and writes an array of the size of the weights. After
this rewrite a step stores the two factors, and one product after the scan also contracts the time axis. Only the order
of the additions differs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jaxtyping import Array

from xla_cpu_rewrites.passes import Pass, also_inside
from xla_cpu_rewrites.programs import Scan, bind, count_uses, evaluate, producers_of

_MIN_BYTES = 2**14  # smallest size of a product that is moved
_FEW_ROWS = 64  # with at most this many rows, the product of a step reaches only a fraction of the peak rate
_barrier: Callable[[Array], Array] = lax.optimization_barrier  # a typed name: JAX's function has no types


class _Dimensions(NamedTuple):
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

    def __init__(self, scan: Scan) -> None:
        self.jaxpr = scan.body
        self.constants, self.carried, self.inputs = scan.divide(self.jaxpr.invars)
        self.last, self.results = self.jaxpr.outvars[:scan.carried], self.jaxpr.outvars[scan.carried:]
        self.uses, self.producers = count_uses(self.jaxpr), producers_of(self.jaxpr)


def _find_products(jaxpr: Jaxpr) -> Iterator[Sequence[Any]]:
    """The factors of the products that are computed after a scan."""
    for equation in jaxpr.eqns:
        sums, results = _moved(equation)
        products = [s.chain[0] for s in sums] + [r.chain[0] for r in results]
        yield from ([v.aval for v in product.invars] for product in products)


def _evaluate(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    sums, results = _moved(equation)
    return (_scan(Scan(equation.params), sums, results, operands) if sums or results
            else bind(equation, operands, sum_after_scans))


sum_after_scans = Pass(also_inside(_find_products), lambda jaxpr, args: _evaluate, "scan",
                       "one product for all steps")


def _moved(equation: JaxprEqn) -> tuple[list[_Sum], list[_Result]]:
    """The products of a scan that are computed after it; none if the equation is another operation."""
    if equation.primitive.name != "scan":
        return [], []
    body = _Body(Scan(equation.params))
    sums = list(_sums(body))
    profitable = [s for s in sums if _is_profitable(s.chain[0])]
    # Factors that are stored anyway.
    stored = {*body.inputs, *body.results, *(v for s in profitable for v in s.factors)}
    sums = [s for s in sums if s in profitable or stored.issuperset(s.factors)]
    stored = stored.union(*(s.factors for s in sums))
    return sums, [r for r in _results(body) if stored.issuperset(r.factors)]


def _sums(body: _Body) -> Iterator[_Sum]:
    """The sums of products among the carried values of a scan."""
    before: Any
    after: Any
    for number, (before, after) in enumerate(zip(body.carried, body.last, strict=True)):
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
    for number, result in enumerate(body.results):
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


def _scan(scan: Scan, sums: Sequence[_Sum], results: Sequence[_Result], operands: Sequence[Any]) -> list[Array]:
    """The results of a scan with some of its products after it."""
    body, carried = scan.body, scan.carried
    constants, first, arrays = scan.divide(operands)
    const_variables, carry_variables, inputs = scan.divide(body.invars)
    removed = {id(inner) for s in sums for inner in (*s.chain, s.addition)}
    removed |= {id(inner) for r in results for inner in r.chain}
    carries = [number for number in range(carried) if number not in {s.number for s in sums}]
    outputs = [number for number in range(len(body.outvars) - carried) if number not in {r.number for r in results}]
    of_all_steps: dict[Any, Array] = dict(zip(inputs, arrays, strict=True))
    # Factors that differ between steps and are not inputs of the scan are further results of it.
    factors = [*(v for s in sums for v in s.factors), *(v for r in results for v in r.factors)]
    stored = [v for v in dict.fromkeys(factors) if v not in of_all_steps]
    step_body = body.replace(  # type: ignore[no-untyped-call]
        eqns=[inner for inner in body.eqns if id(inner) not in removed],
        invars=[*const_variables, *(carry_variables[number] for number in carries), *inputs],
        outvars=[*(body.outvars[number] for number in carries), *(body.outvars[carried + i] for i in outputs), *stored],
        debug_info=body.debug_info.with_unknown_names())

    def step(carry: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
        values = evaluate(ClosedJaxpr(step_body, scan.closed.consts), [*constants, *carry, *x], _evaluate)
        return values[:len(carries)], values[len(carries):]

    last, of_steps = scan.run(step, [first[number] for number in carries], list(of_all_steps.values()))
    of_all_steps |= dict(zip(stored, of_steps[len(outputs):], strict=True))
    last_values: dict[int, Array] = dict(zip(carries, last, strict=True))
    for s in sums:
        total = _sum(s, *(of_all_steps[v] for v in s.factors))
        last_values[s.number] = jnp.add(first[s.number], total)
    values: dict[int, Array] = dict(zip(outputs, of_steps, strict=False))
    by_variable: dict[Any, Array] = dict(zip(const_variables, constants, strict=True))
    for r in results:
        constant = by_variable[r.chain[0].invars[r.constant]]
        values[r.number] = jax.vmap(partial(_result, r, constant))(of_all_steps[r.factors[0]])
    return [last_values[number] for number in range(carried)] + [values[number] for number in sorted(values)]


def _sum(s: _Sum, a: Array, b: Array) -> Array:
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
    product, *transpositions = r.chain
    return _transposed(transpositions, bind(product, [constant, factor] if r.constant == 0 else [factor, constant])[0])


def _transposed(transpositions: Sequence[JaxprEqn], array: Array) -> Array:
    for equation in transpositions:
        array = bind(equation, [array])[0]
    return array
