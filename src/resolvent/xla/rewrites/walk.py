"""The walk over a program (a jaxpr) that replaces its operations, those of its loops, branches and calls included."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

from resolvent.xla.rewrites.deferred import Program, Rule, deferred
from resolvent.xla.rewrites.layouts import carry_layouts
from resolvent.xla.rewrites.operands import prepare_operands, prepared_products
from resolvent.xla.rewrites.residuals import recompute_residuals, recomputed_results
from resolvent.xla.rewrites.row_updates import row_gradients
from resolvent.xla.rewrites.scans import factors_of_sums, sum_after_scans
from resolvent.xla.rewrites.weights import orient_products, oriented_products
from resolvent.xla.versions import supports_rewrites

__all__ = ["Replacement", "Rewriter"]

# Operations whose parameters are programs that run as a part of this program.
_NESTED = frozenset(["checkpoint", "closed_call", "cond", "core_call", "custom_jvp_call", "custom_vjp_call",
                     "custom_vmap_call", "jit", "pjit", "remat2", "scan", "while"])
_CONVOLUTION = "conv_general_dilated"
_CONVOLVED, _SLICED = "a library's convolution", "operations on slices"
_ROWS, _ORIENTED = "only these rows are updated", "weights as second factor"
_PREPARED = "operands stored once"
_RECOMPUTED, _SUMMED = "computed again", "one product for all steps"


@dataclass(frozen=True)
class Replacement:
    """An operation that is compiled as another program.

    Attributes:
        operation: name of the JAX operation, such as ``conv_general_dilated``; ``scan`` for what a scan computes in all
            of its steps.
        operands: shapes and dtypes of its operands, such as ``float32[20,28,28,1]``; of products, the two factors; of
            results that are computed again, these results.
        change: what is compiled instead, in a few words.
    """

    operation: str
    operands: tuple[str, ...]
    change: str


class Rewriter:
    """Replaces the operations of a function for which there is a rule.

    Args:
        rules: name of an operation -> its rule.
    """

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = rules

    def __call__(self, f: Program) -> Program:
        """``f`` with its operations replaced.

        Without an operation to replace, or where rewriting is not supported (``versions.supports_rewrites``), the
        result is ``f(*args)`` itself.
        """
        def call(*args: Any) -> Any:
            if not supports_rewrites():
                return f(*args)
            closed, shape = jax.make_jaxpr(f, return_shape=True)(*args)
            rearranged = prepare_operands(_rearrange(closed))
            jaxpr, replacements = _Walk(self._rules, self).rewrite(rearranged.jaxpr)
            if rearranged is closed and not replacements:
                return f(*args)
            results = jaxpr_as_fun(ClosedJaxpr(jaxpr, rearranged.consts))(*jax.tree.leaves(args))
            return jax.tree.unflatten(jax.tree.structure(shape), results)

        return call

    def replacements(self, f: Program, *args: Any) -> Counter[Replacement]:
        """The operations that are replaced in ``f(*args)``, and how often each occurs in the program."""
        if not supports_rewrites():
            return Counter()
        closed = jax.make_jaxpr(f)(*args)
        oriented = orient_products(closed)
        recomputed = recompute_residuals(oriented)
        return _Walk(self._rules, self).rewrite(closed.jaxpr)[1] + Counter([
            *(_replacement("scatter-add", avals, _ROWS) for avals in row_gradients(closed.jaxpr)),
            *(_replacement("dot_general", avals, _ORIENTED) for avals in oriented_products(closed.jaxpr)),
            *(_replacement("dot_general", avals, _PREPARED) for avals in prepared_products(_rearrange(closed).jaxpr)),
            *(_replacement("scan", [aval], _RECOMPUTED) for aval in recomputed_results(oriented.jaxpr)),
            *(_replacement("scan", avals, _SUMMED) for avals in factors_of_sums(recomputed.jaxpr))])


def _rearrange(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with other layouts and other places of its operations; the program itself if there are none."""
    return carry_layouts(sum_after_scans(recompute_residuals(orient_products(closed))))


def _replacement(operation: str, avals: Iterable[Any], change: str) -> Replacement:
    return Replacement(operation, tuple(aval.str_short() for aval in avals), change)


class _Walk:
    """One walk; a program that is called several times is rewritten once, so that it is compiled once."""

    def __init__(self, rules: Mapping[str, Rule], rewrite: Callable[[Program], Program]) -> None:
        self._rules, self._rewrite = rules, rewrite
        self._done: dict[int, tuple[Any, Any, Counter[Replacement]]] = {}

    def rewrite(self, jaxpr: Jaxpr) -> tuple[Jaxpr, Counter[Replacement]]:
        """The rewritten program, or the program itself if nothing is replaced, and what was replaced."""
        equations, replacements = [], Counter[Replacement]()
        for equation in jaxpr.eqns:
            rewritten, of_equation = self._rewrite_equation(equation)
            equations.append(rewritten)
            replacements += of_equation
        if not replacements:
            return jaxpr, replacements
        return jaxpr.replace(eqns=equations), replacements  # type: ignore[no-untyped-call]

    def _rewrite_equation(self, equation: JaxprEqn) -> tuple[JaxprEqn, Counter[Replacement]]:
        name = equation.primitive.name
        if (rule := self._rules.get(name)) is not None:
            avals: list[Any] = [v.aval for v in equation.invars]
            if rule(*avals, **equation.params) is None:
                return equation, Counter()
            replacement = _replacement(name, avals, _CONVOLVED if name == _CONVOLUTION else _SLICED)
            return (equation.replace(primitive=deferred(equation.primitive, rule, self._rewrite)),
                    Counter([replacement]))
        if name not in _NESTED:
            return equation, Counter()
        params, replacements = {}, Counter[Replacement]()
        for key, value in equation.params.items():
            items = [self._rewrite_parameter(item) for item in (value if isinstance(value, tuple) else (value,))]
            params[key] = tuple(item for item, _ in items) if isinstance(value, tuple) else items[0][0]
            replacements += sum((count for _, count in items), Counter[Replacement]())
        return (equation.replace(params=params) if replacements else equation), replacements

    def _rewrite_parameter(self, value: Any) -> tuple[Any, Counter[Replacement]]:
        if not isinstance(value, ClosedJaxpr | Jaxpr):
            return value, Counter()
        if id(value) not in self._done:
            jaxpr, replacements = self.rewrite(value.jaxpr if isinstance(value, ClosedJaxpr) else value)
            rewritten = ClosedJaxpr(jaxpr, value.consts) if isinstance(value, ClosedJaxpr) else jaxpr
            # The original is a part of the entry, because its id may be used again once it is freed.
            self._done[id(value)] = value, rewritten if replacements else value, replacements
        return self._done[id(value)][1:]
