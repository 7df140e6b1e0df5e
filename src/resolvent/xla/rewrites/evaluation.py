"""Evaluates programs (jaxprs) equation by equation, for rewrites that change several equations together."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

__all__ = ["bind", "evaluate", "programs", "trace"]

Rewrite: TypeAlias = Callable[[ClosedJaxpr], ClosedJaxpr]


def trace(closed: ClosedJaxpr, f: Callable[..., Any]) -> ClosedJaxpr:
    """The program of ``f`` for arguments as those of ``closed``."""
    shape: Callable[..., Any] = jax.ShapeDtypeStruct  # it has no types
    avals = [shape(v.aval.shape, v.aval.dtype, weak_type=getattr(v.aval, "weak_type", False))
             for v in closed.jaxpr.invars]
    traced: ClosedJaxpr = jax.make_jaxpr(f)(*avals)
    return traced


def evaluate(closed: ClosedJaxpr, args: Sequence[Any],
             rule: Callable[[JaxprEqn, list[Any]], Sequence[Any]]) -> list[Any]:
    """The results of a program.

    Args:
        closed: the program.
        args: its arguments.
        rule: an equation and its operands -> its results.
    """
    values: dict[Any, Any] = dict(zip((*closed.jaxpr.constvars, *closed.jaxpr.invars), (*closed.consts, *args),
                                      strict=True))
    for equation in closed.jaxpr.eqns:
        operands = [v.val if isinstance(v, Literal) else values[v] for v in equation.invars]
        with equation.ctx.manager:
            results = rule(equation, operands)
        values.update(zip(equation.outvars, results, strict=True))
    return [v.val if isinstance(v, Literal) else values[v] for v in closed.jaxpr.outvars]


def bind(equation: JaxprEqn, operands: Sequence[Any], rewrite: Rewrite = lambda closed: closed) -> list[Any]:
    """The results of an equation, with the programs among its parameters rewritten."""
    primitive: Any = equation.primitive
    params = primitive.get_bind_params({key: _rewritten(value, rewrite) for key, value in equation.params.items()})
    functions, params = params if isinstance(params, tuple) else ((), params)  # a pair in JAX 0.8
    results = primitive.bind(*functions, *operands, **params)
    return list(results) if primitive.multiple_results else [results]


def programs(equation: JaxprEqn) -> Iterator[ClosedJaxpr]:
    """The programs among the parameters of an equation."""
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item
            elif _is_open(item):
                yield ClosedJaxpr(item, ())


def _is_open(item: Any) -> bool:
    return isinstance(item, Jaxpr) and not item.constvars


def _rewritten(value: Any, rewrite: Rewrite) -> Any:
    if type(value) is tuple:  # not a NamedTuple
        return tuple(_rewritten(item, rewrite) for item in value)
    if isinstance(value, ClosedJaxpr):
        return rewrite(value)
    return rewrite(ClosedJaxpr(value, ())).jaxpr if _is_open(value) else value
