"""Operands of convolutions and products that other operations read as well: computed once.

XLA computes a sum of elementwise operations again in every elementwise operation that reads it. The sum of a residual
block is read by a convolution and by the sum of the next block, so that the last block would compute the normalisations
of all earlier ones again. In a transformer, the gradient by a layer's input is read by products and by the same
gradient of the layer before. Here a call copies such a result, and all read the copy.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Var

from resolvent.xla.programs import EquationRule, bind
from resolvent.xla.rewrites.layouts import ELEMENTWISE
from resolvent.xla.rewrites.operands import MOVES
from resolvent.xla.rewrites.passes import Pass, also_inside
from resolvent.xla.small_call import no_inline

_MIN_BYTES = 2**16  # smallest size of a result that is stored
_CONVOLUTION, _PRODUCT = "conv_general_dilated", "dot_general"
_SUMS = frozenset(["add", "add_any"])
_ELEMENTWISE = ELEMENTWISE | {"custom_jvp_call"}  # the latter is an activation function


def _find_shared(jaxpr: Jaxpr) -> Iterator[Sequence[Any]]:
    return ([v.aval] for v in _shared(jaxpr))


def _rule_of(jaxpr: Jaxpr, args: Sequence[Any]) -> EquationRule:
    shared = {*_shared(jaxpr)}

    def rule(equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        results = bind(equation, operands, store_shared_operands)
        return results if shared.isdisjoint(equation.outvars) else [*map(no_inline(lambda x: x), results)]

    return rule


store_shared_operands = Pass(also_inside(_find_shared), _rule_of, "add", "stored once")


def _shared(jaxpr: Jaxpr) -> list[Any]:
    """The elementwise results that a convolution, or the sums that a product, and an elementwise operation read."""
    readers: dict[Any, set[str]] = defaultdict(set)
    for equation in reversed(jaxpr.eqns):  # who reads a moved array is known before the move
        name = equation.primitive.name
        of_equation = readers[equation.outvars[0]] if name in MOVES else {name}
        for v in equation.invars:
            if isinstance(v, Var):
                readers[v] |= of_equation
    results: list[tuple[Any, bool]] = [(v, equation.primitive.name in _SUMS) for equation in jaxpr.eqns
                                       if equation.primitive.name in _ELEMENTWISE for v in equation.outvars]
    return [v for v, is_sum in results
            if (_CONVOLUTION in readers[v] or (is_sum and _PRODUCT in readers[v]))
            and not _ELEMENTWISE.isdisjoint(readers[v]) and v.aval.size * v.aval.dtype.itemsize >= _MIN_BYTES]
