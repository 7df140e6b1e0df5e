"""The walk over a program (a jaxpr) that replaces its operations, those of its loops, branches and calls included."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

from xla_cpu_rewrites.deferred import Faster, Program, deferred
from xla_cpu_rewrites.passes import Pass, Replacement
from xla_cpu_rewrites.versions import supports_rewrites

# Operations whose parameters are programs that run as a part of this program.
_NESTED = frozenset(["checkpoint", "closed_call", "cond", "core_call", "custom_jvp_call", "custom_vjp_call",
                     "custom_vmap_call", "jit", "pjit", "remat2", "scan", "while"])


class Rewriter:
    """Rearranges the program of a function, and replaces the operations for which there is a rule.

    Args:
        rules: name of an operation -> how it is compiled instead.
    """

    def __init__(self, passes: Sequence[Pass], rules: Mapping[str, Faster]) -> None:
        self._passes, self._rules = passes, rules

    def __call__(self, f: Program) -> Program:
        """``f`` with its operations replaced.

        Without an operation to replace, or where rewriting is not supported (``versions.supports_rewrites``), the
        result is ``f(*args)`` itself.
        """
        def call(*args: Any) -> Any:
            if not supports_rewrites():
                return f(*args)
            closed, shape = jax.make_jaxpr(f, return_shape=True)(*args)
            rearranged = closed
            for rearrange in self._passes:
                rearranged = rearrange(rearranged)
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
        replacements = _Walk(self._rules, self).rewrite(closed.jaxpr)[1]
        for rearrange in self._passes:
            replacements.update(rearrange.replacements(closed))
            closed = rearrange(closed)
        return replacements


class _Walk:
    """One walk; a program that is called several times is rewritten once, so that it is compiled once."""

    def __init__(self, rules: Mapping[str, Faster], rewrite: Callable[[Program], Program]) -> None:
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
        if (faster := self._rules.get(name)) is not None:
            avals: list[Any] = [v.aval for v in equation.invars]
            if faster.rule(*avals, **equation.params) is None:
                return equation, Counter()
            return (equation.replace(primitive=deferred(equation.primitive, faster.rule, self._rewrite)),
                    Counter([Replacement.of(name, avals, faster.change)]))
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
