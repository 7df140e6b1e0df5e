"""Scales of the factors of matrix products: moved to smaller arrays.

A quotient or product with an array c that is constant along the contracted axes is taken out of a product of matrices,
(a / c) b = (a b) / c, and one that is constant along the other axes of its factor goes to the other factor, if that
array has fewer entries. In attention the sums of the softmax then divide the results instead of the weights.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var
from jaxtyping import Array

from xla_cpu_rewrites.passes import Pass, also_inside
from xla_cpu_rewrites.programs import EquationRule, bind, count_uses, producers_of
from xla_cpu_rewrites.reductions import expanded_shape

_MIN_SIZE = 2**12  # smallest number of entries of a factor that is divided elsewhere


class _Scale(NamedTuple):
    """A factor x / c or x * c of a product, where c is an array with fewer axes.

    Attributes:
        position: of the factor, 0 or 1.
        of: the equation that divides or multiplies.
        x: its variable.
        c: a variable or a literal.
        sizes: the shape of c with the axes of x.
        is_inside: whether the other factor is divided; otherwise the product is.
    """

    position: int
    of: JaxprEqn
    x: Any
    c: Any
    sizes: Sequence[int]
    is_inside: bool

    def apply(self, equation: JaxprEqn, target: Array, c: Any) -> Array:
        """The other factor or the product, divided or multiplied by c."""
        contracted, batch = equation.params["dimension_numbers"]
        i, n = self.position, len(self.sizes)
        free: list[int | None] = [a for a in range(n) if a not in (*contracted[i], *batch[i])]
        if self.is_inside:
            match = dict(zip((*batch[1 - i], *contracted[1 - i]), (*batch[i], *contracted[i]), strict=True))
            order = [*map(match.get, range(target.ndim))]
        else:
            others: list[int | None] = [None] * (target.ndim - len(batch[i]) - len(free))
            order = [*batch[i], *(free + others if i == 0 else others + free)]
        moved = jnp.transpose(jnp.reshape(c, self.sizes),
                              [*(a for a in order if a is not None), *sorted({*range(n)} - {*order})])
        return _rescale(self.of, target, jnp.reshape(moved, [1 if a is None else self.sizes[a] for a in order]))


def _rescale(equation: JaxprEqn, x: Array, c: Any) -> Array:
    result: Array = x / c if equation.primitive.name == "div" else x * c
    return result


def _find_scales(jaxpr: Jaxpr) -> Iterator[Sequence[Any]]:
    producers, rescaled = producers_of(jaxpr), _rescaled_products(jaxpr)
    return ([v.aval for v in equation.invars] for equation in jaxpr.eqns
            if id(equation) in rescaled or _scales(equation, producers))


def _scale_rule(jaxpr: Jaxpr, args: Sequence[Any]) -> EquationRule:
    producers, rescaled, values = producers_of(jaxpr), _rescaled_products(jaxpr), dict[Any, Any]()
    skipped = {*map(id, rescaled.values())}

    def value(v: Any) -> Any:
        return v.val if isinstance(v, Literal) else values[v]

    def rule(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
        values.update((v, x) for v, x in zip(equation.invars, operands, strict=True) if isinstance(v, Var))
        if id(equation) in skipped:
            return operands[:1]
        factors, scales = [*operands], _scales(equation, producers)
        for scale in scales:
            factors[scale.position] = value(scale.x)
        for scale in scales:
            if scale.is_inside:
                other = 1 - scale.position
                factors[other] = scale.apply(equation, factors[other], value(scale.c))
        if id(equation) in rescaled:
            after, small = rescaled[id(equation)], int(factors[1].size < factors[0].size)
            factors[small] = _rescale(after, factors[small], value(after.invars[1]))
        results = bind(equation, factors, scale_small_arrays)
        for scale in scales:
            if not scale.is_inside:
                results = [scale.apply(equation, results[0], value(scale.c))]
        return results

    return rule


scale_small_arrays = Pass(also_inside(_find_scales), _scale_rule, "dot_general", "a smaller array divided")


def _rescaled_products(jaxpr: Jaxpr) -> dict[int, JaxprEqn]:
    """Id of a product that is larger than a factor -> the equation, its only reader, that scales it by a number."""
    producers, uses = producers_of(jaxpr), count_uses(jaxpr)
    result = {}
    for equation in jaxpr.eqns:
        x = equation.invars[0] if equation.primitive.name in ("div", "mul") else None
        if isinstance(x, Var) and x in producers and uses[x] == 1 and _is_product(product := producers[x]):
            of_x, of_c = _avals(equation.invars)
            smallest = min(aval.size for aval in _avals(product.invars))
            if isinstance(equation.invars[1], Literal) and of_c.ndim == 0 and of_x.size > max(_MIN_SIZE, smallest):
                result[id(product)] = equation
    return result


def _is_product(equation: JaxprEqn) -> bool:
    dtypes = {aval.dtype for aval in _avals((*equation.invars, *equation.outvars))} if (
        equation.primitive.name == "dot_general") else ()
    return len(dtypes) == 1 and all(np.issubdtype(dtype, np.floating) for dtype in dtypes)


def _scales(equation: JaxprEqn, producers: dict[Any, JaxprEqn]) -> list[_Scale]:
    """The factors x / c of a product where c is constant along axes so that a smaller array can be divided instead."""
    scales = [_scale(equation, i, producers) for i in (0, 1)] if _is_product(equation) else []
    return [scale for scale in scales if scale is not None]


def _scale(equation: JaxprEqn, position: int, producers: dict[Any, JaxprEqn]) -> _Scale | None:
    factor, other = equation.invars[position], equation.invars[1 - position]
    of = producers.get(factor) if isinstance(factor, Var) else None
    if of is None or of.primitive.name not in ("div", "mul") or isinstance(of.invars[0], Literal):
        return None
    (x, c), (of_x, of_c, of_factor, of_other, of_product) = of.invars, _avals(
        (*of.invars, factor, other, *equation.outvars))
    broadcast = producers.get(c) if isinstance(c, Var) else None
    sizes = [*of_c.shape] or [1] * of_x.ndim
    if broadcast is not None and broadcast.primitive.name == "broadcast_in_dim":
        c, = broadcast.invars
        sizes = [*expanded_shape(broadcast, _avals([c])[0].shape)]
    contracted, batch = (axes[position] for axes in equation.params["dimension_numbers"])
    varies = {a for a, n in enumerate(sizes) if n > 1}
    targets = [(aval.size, is_inside) for aval, is_inside, axes in (
        (of_product, False, {*contracted}), (of_other, True, {*range(of_x.ndim)} - {*contracted, *batch}))
        if not varies & axes]
    size, is_inside = min(targets, default=(of_x.size, False))
    is_smaller = of_x.shape == of_factor.shape and max(size, _MIN_SIZE - 1) < of_x.size
    return _Scale(position, of, x, c, sizes, is_inside) if is_smaller else None


def _avals(variables: Sequence[Any]) -> list[Any]:
    return [v.aval for v in variables]
