"""Arithmetic and sums over pixels, with the factors that are constant along the pixels computed for themselves.

The gradient of a normalisation has many sums over the pixels p, such as sum_p (x_p - m) r g_p with the mean m and the
scale r. It is r (sum_p x_p g_p - m sum_p g_p), and for all of these sums two are enough: of x g and of g. In the same
way a normalised image is a x + b, and its gradient a g + b x + c, with small arrays a, b and c. Here an array is a
polynomial of stored arrays with coefficients that are constant along some axes, up to an operation that is not known.

A product is expanded only if one factor is a single array with a coefficient: sum_p (x_p - m)^2 stays as it is, because
sum_p x_p^2 - 2 m sum_p x_p + ... would lose digits.

Other reductions over pixels and over the features of a group are computed in two steps, first over the pixels. XLA
makes one loop of both, which adds the few features of a group one after the other.
"""

import math
import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Var
from jaxtyping import Array

from xla_cpu_rewrites.deferred import Program, Rule
from xla_cpu_rewrites.layouts import ELEMENTWISE, RESHAPES
from xla_cpu_rewrites.passes import Pass
from xla_cpu_rewrites.programs import CALLS, bind, evaluate, programs

_barrier: Callable[[Array], Array] = lax.optimization_barrier  # a typed name: JAX's function has no types
_MAX_INLINE_SIZE = 1024  # up to this size, XLA compiles a reduction into the loop around it
_MIN_SIZE = 4096  # smaller arrays are computed as they are
_MIN_RATIO = 16  # number of entries of an array for one of a coefficient
_MAX_DEGREE, _MAX_TERMS = 2, 4
_ARITHMETIC = frozenset(["add", "add_any", "div", "mul", "neg", "sub"])
_FOLLOWED = ELEMENTWISE | RESHAPES | {"broadcast_in_dim", "reduce_sum"}
_UNIT = 1.0  # a number without a dtype
Shape: TypeAlias = tuple[int, ...]
Monomial: TypeAlias = tuple[int, ...]  # numbers of arrays, in ascending order
# The coefficient of each product. It has no axes, or those of the result, some with size 1.
Terms: TypeAlias = dict[Monomial, Any]


def _find_products(jaxpr: Jaxpr, statistics: Iterable[Var] = ()) -> Generator[Sequence[Any], None, set[Any]]:
    """The products with what is computed from sums over pixels, and all variables that are computed from such sums.

    Args:
        statistics: the arguments that are computed from such sums.
    """
    derived, wide = set[Any](statistics), set[Any]()  # wide: broadcast to an array of many pixels
    for equation in jaxpr.eqns:
        name, results = equation.primitive.name, equation.outvars
        avals: list[Any] = [v.aval for v in equation.invars]
        shape: Shape = getattr(results[0].aval, "shape", ()) if results else ()
        operands: list[Any] = [v for v in equation.invars if isinstance(v, Var) and v in derived]
        if name in CALLS:
            inner = equation.params["jaxpr"].jaxpr
            pairs = zip(inner.invars, equation.invars, strict=True)
            of_call = yield from _find_products(inner, [v for v, operand in pairs if operand in operands])
            derived.update(v for v, inside in zip(results, inner.outvars, strict=True)
                         if isinstance(inside, Var) and inside in of_call)
            continue
        for closed in programs(equation):
            yield from _find_products(closed.jaxpr)
        if name == "reduce_sum" and _is_over_pixels(avals[0].shape, equation.params["axes"]):
            derived.update(results)
        elif name in ("div", "mul") and (any(_is_coefficient(v.aval.shape, shape) for v in operands)
                                         or any(isinstance(v, Var) and v in wide for v in equation.invars)):
            yield avals
        elif operands and name in _FOLLOWED:  # not products of matrices: what follows a mean of pixels is another layer
            is_wide = any(_is_coefficient(expanded_shape(equation, v.aval.shape), shape) for v in operands)
            (wide if is_wide else derived).update(results if name == "broadcast_in_dim" or not is_wide else ())
    return derived


def _is_over_pixels(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether a sum is over many numbers that are not adjacent in memory."""
    return math.prod(shape) >= _MIN_SIZE and sorted(axes) != [*range(len(shape) - len(axes), len(shape))]


def expanded_shape(equation: JaxprEqn, shape: Sequence[int]) -> Sequence[int]:
    """The shape of an operand with the axes of the result."""
    if equation.primitive.name != "broadcast_in_dim":
        return shape
    sizes = dict(zip(equation.params["broadcast_dimensions"], shape, strict=True))
    return [sizes.get(axis, 1) for axis in range(len(equation.params["shape"]))]


def _is_coefficient(sizes: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether an array of this shape is small, and constant along axes before one along which it is not.

    The mean of a row is not: the operations on a row of numbers that are adjacent in memory are fast.
    """
    if len(sizes) != len(shape) or math.prod(shape) < max(_MIN_SIZE, _MIN_RATIO * math.prod(sizes)):
        return False
    varies = [a for a, n in enumerate(sizes) if n > 1]
    return bool(varies) and any(n > 1 for a, n in enumerate(shape[:varies[-1]]) if sizes[a] == 1)


@dataclass
class _Arrays:
    """The arrays of polynomials, and the sums of their products.

    Attributes:
        numbers: of the arrays, by id.
    """

    arrays: list[Array] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    sums: dict[tuple[Monomial, tuple[int, ...]], Array] = field(default_factory=dict)

    def number(self, array: Array) -> int:
        """The number of an array."""
        if id(array) not in self.numbers:
            self.numbers[id(array)] = len(self.arrays)
            self.arrays.append(array)
        return self.numbers[id(array)]

    def shape(self, monomial: Monomial) -> Shape:
        """The shape in which a product is computed: the arrays of a product may have been reshaped."""
        return self.arrays[monomial[0]].shape

    def product(self, monomial: Monomial) -> Array:
        """The product of arrays."""
        return reduce(operator.mul, (_reshape(self.arrays[i], self.shape(monomial)) for i in monomial))

    def sum(self, monomial: Monomial, axes: tuple[int, ...]) -> Array:
        """The sum of a product, with axes of size 1: over the pixels of each sample, and then over the samples."""
        key = monomial, axes
        if key not in self.sums:
            array, summed = (self.sum(monomial, axes[1:]), (0,)) if axes[0] == 0 and len(axes) > 1 else (
                self.product(monomial), axes)
            self.sums[key] = jnp.sum(array, summed, keepdims=True)
        return self.sums[key]


@dataclass(frozen=True)
class Polynomial:
    """A sum of products of arrays, each reshaped to this shape, with coefficients.

    Attributes:
        original: computes it as the program does.
    """

    shape: Shape
    terms: Terms
    arrays: _Arrays
    original: Callable[[], Array] | None = None

    @cached_property
    def array(self) -> Array:
        """The sum as an array, computed in the shape of the first array if the coefficients are small in it."""
        if self.original is not None and max(map(len, self.terms)) > 1:
            return self.original()
        shape = next((self.arrays.shape(m) for m in self.terms if m), self.shape)
        terms = {m: _reshape_coefficient(c, self.shape, shape) for m, c in self.terms.items()}
        if not _are_coefficients(terms, shape):
            shape, terms = self.shape, self.terms
        parts = [_times(c, _reshape(self.arrays.product(m), shape) if m else _UNIT) for m, c in terms.items()]
        return _reshape(jnp.broadcast_to(reduce(operator.add, parts), shape), self.shape)

    def plain(self) -> Array:
        """The sum as an array."""
        return self.array

    def reshape(self, shape: Shape) -> "Polynomial | None":
        """It with another shape; None if a coefficient becomes as large as the array."""
        terms = {m: _reshape_coefficient(c, self.shape, shape) for m, c in self.terms.items()}
        return Polynomial(shape, terms, self.arrays) if _are_coefficients(terms, shape) else None

    def sum(self, axes: tuple[int, ...]) -> Array | None:
        """Its sum, or None if a coefficient is not constant along enough of the axes."""
        parts = [self._sum_term(monomial, c, axes) for monomial, c in self.terms.items()]
        if any(part is None for part in parts):
            return None
        shape = [1 if a in axes else n for a, n in enumerate(self.shape)]
        return lax.squeeze(jnp.broadcast_to(reduce(operator.add, parts), shape), axes)

    def _sum_term(self, monomial: Monomial, c: Any, axes: tuple[int, ...]) -> Any:
        """The sum of a term, with axes of size 1: the product is summed as far as its coefficient is constant."""
        constant = [a for a in axes if np.ndim(c) == 0 or c.shape[a] == 1]
        if not monomial:
            part = c * math.prod(self.shape[a] for a in constant)
            return jnp.sum(part, axes, keepdims=True) if np.ndim(c) else part
        summed: list[int] = []  # axes of the stored product
        sizes: list[int] = []  # of its sum, with the axes of the polynomial
        shape, number = self.arrays.shape(monomial), 0
        for of_self, of_shape in _groups(self.shape, shape):
            is_summed = all(len(sizes) + i in constant for i in range(len(of_self)))
            summed += [number + i for i in range(len(of_shape))] if is_summed else []
            sizes += [1] * len(of_self) if is_summed else of_self
            number += len(of_shape)
        if math.prod(shape[a] for a in summed) < _MIN_RATIO:
            return None
        part = _times(c, _reshape(self.arrays.sum(monomial, tuple(summed)), tuple(sizes)))
        return jnp.sum(part, [a for a in axes if sizes[a] > 1], keepdims=True)


class _Factored:
    """The rule for the equations of a program."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        # Arrays with other numbers of entries stay as they are.
        self._sizes = {max(aval.size for aval in avals) for avals in _find_products(jaxpr)}
        self._arrays = _Arrays()

    def __call__(self, equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        """The results of an equation, each an array or a ``Polynomial``."""
        if equation.primitive.name in CALLS:
            return evaluate(equation.params["jaxpr"], operands, self)
        result = self._compute(equation, operands)
        if result is not None:
            return [result]
        return bind(equation, [*map(_plain, operands)], factor_sums)

    def _compute(self, equation: JaxprEqn, operands: Sequence[Any]) -> Any:
        """The result, or None if the operation has to have arrays as operands."""
        name, params, aval = equation.primitive.name, equation.params, equation.outvars[0].aval
        x: Any = operands[0] if operands else None
        shape: Shape = getattr(aval, "shape", ())
        if getattr(aval, "dtype", None) not in (np.float32, np.float64):  # a sum of products overflows float16 sooner
            return None
        if math.prod(x.shape if name == "reduce_sum" else shape) not in self._sizes:
            return None
        if name == "reduce_sum":
            axes = params["axes"]
            return self._polynomial(x, x.shape).sum(axes) if _is_over_pixels(x.shape, axes) else None
        if name == "broadcast_in_dim" and _is_coefficient(sizes := expanded_shape(equation, x.shape), shape):
            return Polynomial(shape, {(): _reshape(_plain(x), tuple(sizes))}, self._arrays)
        if name in RESHAPES and params.get("dimensions") is None:
            return self._polynomial(x, x.shape).reshape(shape)
        if name in _ARITHMETIC and any(isinstance(x, Polynomial) or _is_coefficient(np.shape(x), shape)
                                       for x in operands):
            return self._calculate(equation, operands, shape)
        return None

    def _calculate(self, equation: JaxprEqn, operands: Sequence[Any], shape: Shape) -> Polynomial | None:
        name, polynomials = equation.primitive.name, [self._polynomial(x, shape) for x in operands]
        if any(p.shape != shape for p in polynomials):
            return None
        if name == "mul" and all(any(p.terms) for p in polynomials):
            # A sum of several arrays is stored, rather than multiplied term by term.
            polynomials = [p if sum(map(bool, p.terms)) == 1 else self._polynomial(p.array, shape) for p in polynomials]
        terms = _calculate(name, *(p.terms for p in polynomials))
        if terms is None or not _are_coefficients(terms, shape):
            return None
        return Polynomial(shape, terms, self._arrays, lambda: bind(equation, [*map(_plain, operands)])[0])

    def _polynomial(self, x: Any, shape: Shape) -> Polynomial:
        if isinstance(x, Polynomial):
            return x
        if np.ndim(x) == 0 or _is_coefficient(x.shape, shape):
            return Polynomial(shape, {(): x}, self._arrays)
        return Polynomial(x.shape, {(self._arrays.number(x),): _UNIT}, self._arrays)


factor_sums = Pass(_find_products, lambda jaxpr, args: _Factored(jaxpr), "mul", "factors taken out of sums over pixels")


def _calculate(name: str, a: Terms, b: Terms | None = None) -> Terms | None:
    """The terms of the result of an arithmetic operation; None if it is not a polynomial, or too long."""
    if b is None:
        return {m: -c for m, c in a.items()}  # the only operation with one operand
    if name == "div":
        result = {m: c / b[()] for m, c in a.items()} if [*b] == [()] else {}
    elif name == "mul":
        pairs = [(m, n) for m in a for n in b] if min(len(a), len(b)) == 1 else []
        result = {tuple(sorted(m + n)): _times(a[m], b[n]) for m, n in pairs}
    else:
        result = dict(a)
        for m, c in b.items():
            c = -c if name == "sub" else c
            result[m] = result[m] + c if m in result else c
    return result if result and len(result) <= _MAX_TERMS and max(map(len, result)) <= _MAX_DEGREE else None


def _times(a: Any, b: Any) -> Any:
    return b if a is _UNIT else a if b is _UNIT else a * b


def _plain(x: Any) -> Any:
    return x.array if isinstance(x, Polynomial) else x


def _reshape(array: Array, shape: Shape) -> Array:
    return array if array.shape == shape else lax.reshape(array, shape)


def _are_coefficients(terms: Terms, shape: Shape) -> bool:
    return all(np.ndim(c) == 0 or _is_coefficient(c.shape, shape) for c in terms.values())


def _reshape_coefficient(c: Any, old: Shape, new: Shape) -> Any:
    """The coefficient of an array that is reshaped. It stays constant along axes that are not merged with others."""
    if np.ndim(c) == 0 or old == new:
        return c
    full: list[int] = []
    shape: list[int] = []
    for of_old, of_new in _groups(old, new):
        is_constant = all(n == 1 for n in c.shape[len(full):len(full) + len(of_old)])
        full += [1] * len(of_old) if is_constant else of_old
        shape += [1] * len(of_new) if is_constant else of_new
    return lax.reshape(jnp.broadcast_to(c, full), shape)


def _groups(old: Shape, new: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Both shapes, divided into the smallest groups of axes with the same number of entries."""
    a, b = [*old], [*new]
    while a or b:
        of_a, of_b = a[:1], b[:1]
        del a[:1], b[:1]
        while math.prod(of_a) != math.prod(of_b):
            source, target = (a, of_a) if math.prod(of_a) < math.prod(of_b) else (b, of_b)
            target.append(source.pop(0))
        yield of_a, of_b


def _in_steps(reduce: Callable[..., Array]) -> Rule:
    """The rule of a reduction over the last axes and over others that are not next to them."""
    def rule(operand: Any, *, axes: tuple[int, ...], **_: Any) -> Program | None:
        fast = tuple(axis for axis in axes if {*range(axis, operand.ndim)} <= {*axes})
        slow = tuple(axis for axis in axes if axis not in fast)
        if not (slow and fast) or operand.size <= _MAX_INLINE_SIZE or not np.issubdtype(operand.dtype, np.floating):
            return None

        def program(x: Array) -> Array:
            # The slow axes first: it runs over adjacent numbers. Without a barrier XLA would join both reductions.
            first = _barrier(reduce(x, slow))
            return reduce(first, tuple(axis - len(slow) for axis in fast))

        return program

    return rule


sum_in_steps, max_in_steps, min_in_steps = (_in_steps(reduce) for reduce in (jnp.sum, jnp.max, jnp.min))
