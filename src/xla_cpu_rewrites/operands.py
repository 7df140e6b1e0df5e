"""Operands of matrix products and convolutions: computed once, and transposed where they are small.

XLA computes a sum of elementwise operations again in every elementwise operation that reads it. The sum of a residual
block is read by a convolution and by the sum of the next block, so that the last block would compute the normalisations
of all earlier ones again. In a transformer, the gradient by a layer's input is read by products and by the same
gradient of the layer before. Here a call copies such a result, and all read the copy.

The gradient by the weights of a layer is the product of a transposed gradient and the layer's input. XLA computes such
an operand again while it transposes it, with all elementwise operations that lead to it. In a transformer these are the
residual connections and normalisations of all later layers. Here such a product is a call, whose operands are stored.
Of the products a^T b, the smaller factor is transposed, because XLA has no fast product with a transposed first factor
that is the larger one: in the gradients of attention, and in those by weights with fewer columns than rows.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Var
from jaxtyping import Array

from xla_cpu_rewrites.layouts import ELEMENTWISE
from xla_cpu_rewrites.passes import Pass, also_inside
from xla_cpu_rewrites.programs import EquationRule, bind, count_uses, producers_of
from xla_cpu_rewrites.small_call import no_inline

_MIN_BYTES = 2**16  # smallest size of an operand that is stored
_CACHE_BYTES = 2**21  # about the size of a core's second cache
_MIN_RATIO = 4  # of the sizes of the factors: with fewer columns of a, packing is a small part of a product
_MOVES = frozenset(["reshape", "squeeze", "transpose"])
_CONVOLUTION, _PRODUCT = "conv_general_dilated", "dot_general"
_SUMS = frozenset(["add", "add_any"])
_ELEMENTWISE = ELEMENTWISE | {"custom_jvp_call"}  # the latter is an activation function


def _find_products(jaxpr: Jaxpr) -> Iterator[Sequence[Any]]:
    calls = _calls(jaxpr)
    return ([v.aval for v in equation.invars] for equation in jaxpr.eqns
            if id(equation) in calls or _is_swapped(equation))


def _product_rule(jaxpr: Jaxpr, args: Sequence[Any]) -> EquationRule:
    calls = _calls(jaxpr)

    def rule(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
        if _is_swapped(equation):
            return [_swapped_product(equation, *operands)]
        if id(equation) in calls:
            def product(a: Array, b: Array) -> Array:
                result: Array = bind(equation, [a, b])[0]
                return result
            return [no_inline(product)(*operands)]
        return bind(equation, operands, prepare_operands)

    return rule


prepare_operands = Pass(also_inside(_find_products), _product_rule, _PRODUCT, "operands stored once")


def _calls(jaxpr: Jaxpr) -> set[int]:
    """The ids of the products without a batch that transpose a result of elementwise operations with other readers."""
    producers, uses = producers_of(jaxpr), count_uses(jaxpr)

    def is_computed_again(factor: Any) -> bool:
        while factor in producers and producers[factor].primitive.name in _MOVES and uses[factor] == 1:
            factor = producers[factor].invars[0]
        return (factor in producers and producers[factor].primitive.name in ELEMENTWISE and uses[factor] > 1
                and factor.aval.size * factor.aval.dtype.itemsize >= _MIN_BYTES)

    return {id(equation) for equation in jaxpr.eqns if any(map(is_computed_again, _transposed_factors(equation)))}


def _transposed_factors(equation: JaxprEqn) -> list[Any]:
    """The factors of a product without a batch whose last axis is not contracted."""
    if equation.primitive.name != _PRODUCT:
        return []
    contracted, batches = equation.params["dimension_numbers"]
    avals: list[Any] = [v.aval for v in equation.invars]
    return [v for v, aval, axes in zip(equation.invars, avals, contracted, strict=True)
            if batches == ((), ()) and isinstance(v, Var) and aval.ndim - 1 not in axes]


def _is_swapped(equation: JaxprEqn) -> bool:
    """Whether it is a product a^T b or b^T a, or a batch of them, where a is [*batch, *contracted, other] and large."""
    if equation.primitive.name != _PRODUCT:
        return False
    contracted, batches = equation.params["dimension_numbers"]
    avals: list[Any] = [v.aval for v in (*equation.invars, *equation.outvars)]
    sizes, n, m = [aval.size for aval in avals], len(batches[0]), len(contracted[0])
    large = int(sizes[1] > sizes[0])

    def contracts(position: int, first: int) -> bool:
        """Whether the axes of a factor are those of the batch, and from number ``first`` on the contracted ones."""
        return bool(batches[position] == (*range(n),) and contracted[position] == (*range(first, first + m),))

    have_one_other_axis = m > 0 and all(aval.ndim == n + m + 1 for aval in avals[:2])
    # XLA's own orders of a product b^T a: with a stored b^T, and with two matrices.
    is_stored = large == 1 and (contracts(0, n + 1) or (n == 0 and m == 1 and _is_packed_in_blocks(*avals[:2])))
    return (have_one_other_axis and contracts(large, n) and not is_stored and sizes[0] != sizes[1]
            and sizes[2] < sizes[large] and sizes[large] * avals[large].dtype.itemsize >= _MIN_BYTES)


def _swapped_product(equation: JaxprEqn, *factors: Array) -> Array:
    """The products a^T b as (b^T a)^T, with b^T and b^T a stored: XLA has no fast a^T b, and undoes transposes."""
    small = int(factors[1].size < factors[0].size)
    b, contracted, batch = factors[small], *(axes[small] for axes in equation.params["dimension_numbers"])
    a, n, axes = factors[1 - small], len(batch), (*range(b.ndim),)
    if _is_packed_in_blocks(b, a) and contracted == axes[:-1]:
        b, a = (x.reshape(-1, x.shape[-1]) for x in (b, a))
        numbers: Any = ((0,), (0,)), ((), ())
    else:
        order = [*batch, *({*axes} - {*batch, *contracted}), *contracted]
        b = no_inline(lambda b: jnp.transpose(b, order))(b)
        numbers = (axes[n + 1:], axes[n:-1]), (axes[:n], axes[:n])
    product = equation.replace(params=equation.params | {"dimension_numbers": numbers})
    stored: Array = no_inline(lambda b, a: bind(product, [b, a])[0])(b, a)
    return jnp.swapaxes(stored, -1, -2) if small else stored


def _is_packed_in_blocks(b: Any, a: Any) -> bool:
    """Whether a product b^T a is faster than one with a stored b^T.

    XLA computes the former with Eigen, which packs a in blocks, and the latter with YNNPACK, which packs all of a
    before, also where a is larger than a core's cache.
    """
    return bool(a.size * a.dtype.itemsize >= _CACHE_BYTES and a.size >= _MIN_RATIO * b.size)


def _find_shared(jaxpr: Jaxpr) -> Iterator[Sequence[Any]]:
    return ([v.aval] for v in _shared(jaxpr))


def _shared_rule(jaxpr: Jaxpr, args: Sequence[Any]) -> EquationRule:
    shared = {*_shared(jaxpr)}

    def rule(equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        results = bind(equation, operands, store_shared_operands)
        return results if shared.isdisjoint(equation.outvars) else [*map(no_inline(lambda x: x), results)]

    return rule


store_shared_operands = Pass(also_inside(_find_shared), _shared_rule, "add", "stored once")


def _shared(jaxpr: Jaxpr) -> list[Any]:
    """The elementwise results that a convolution, or the sums that a product, and an elementwise operation read."""
    readers: dict[Any, set[str]] = defaultdict(set)
    for equation in reversed(jaxpr.eqns):  # who reads a moved array is known before the move
        name = equation.primitive.name
        of_equation = readers[equation.outvars[0]] if name in _MOVES else {name}
        for v in equation.invars:
            if isinstance(v, Var):
                readers[v] |= of_equation
    results: list[tuple[Any, bool]] = [(v, equation.primitive.name in _SUMS) for equation in jaxpr.eqns
                                       if equation.primitive.name in _ELEMENTWISE for v in equation.outvars]
    return [v for v, is_sum in results
            if (_CONVOLUTION in readers[v] or (is_sum and _PRODUCT in readers[v]))
            and not _ELEMENTWISE.isdisjoint(readers[v]) and v.aval.size * v.aval.dtype.itemsize >= _MIN_BYTES]
