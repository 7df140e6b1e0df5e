"""Programs (jaxprs): evaluation equation by equation, the programs inside of equations, and scans."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jaxtyping import Array

Item = TypeVar("Item")
Rewrite: TypeAlias = Callable[[ClosedJaxpr], ClosedJaxpr]
# (equation, its operands) -> its results
EquationRule: TypeAlias = Callable[[JaxprEqn, list[Any]], Sequence[Any]]

CALLS = ("jit", "pjit")


def trace(closed: ClosedJaxpr, f: Callable[..., Any]) -> ClosedJaxpr:
    """The program of ``f`` for arguments as those of ``closed``."""
    traced: ClosedJaxpr = jax.make_jaxpr(f)(*map(_shape, closed.jaxpr.invars))
    return traced


def _shape(variable: Any) -> Any:
    shape: Callable[..., Any] = jax.ShapeDtypeStruct  # it has no types
    aval = variable.aval
    return shape(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def evaluate(closed: ClosedJaxpr, args: Sequence[Any], rule: EquationRule) -> list[Any]:
    """The results of a program, each equation of which is evaluated by ``rule``."""
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


def _rewritten(value: Any, rewrite: Rewrite) -> Any:
    if type(value) is tuple:  # not a NamedTuple
        return tuple(_rewritten(item, rewrite) for item in value)
    if isinstance(value, ClosedJaxpr):
        return rewrite(value)
    return rewrite(ClosedJaxpr(value, ())).jaxpr if _is_open(value) else value


def programs(equation: JaxprEqn) -> Iterator[ClosedJaxpr]:
    """The programs among the parameters of an equation, except open ones that need constants."""
    for inner in _inner(equation):
        if isinstance(inner, ClosedJaxpr):
            yield inner
        elif _is_open(inner):
            yield ClosedJaxpr(inner, ())


def inner_jaxprs(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """The programs among the parameters of an equation, without their constants."""
    return (inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner for inner in _inner(equation))


def _inner(equation: JaxprEqn) -> Iterator[ClosedJaxpr | Jaxpr]:
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr | Jaxpr):
                yield item


def _is_open(item: Any) -> bool:
    return isinstance(item, Jaxpr) and not item.constvars


def count_uses(jaxpr: Jaxpr) -> Counter[Any]:
    """How often each variable of a program is read, as an operand or as a result of the program."""
    return Counter(v for v in (*jaxpr.outvars, *(v for equation in jaxpr.eqns for v in equation.invars))
                   if isinstance(v, Var))


def producers_of(jaxpr: Jaxpr) -> dict[Any, JaxprEqn]:
    """Variable -> the equation that computes it."""
    return {v: equation for equation in jaxpr.eqns for v in equation.outvars}


class Scan:
    """A scan: its body, and the three kinds of its operands.

    Attributes:
        closed: the program of a step.
        params: the parameters of the operation.
        consts: number of constants, which are the same in all steps.
        carried: number of values that a step passes to the next one.
    """

    def __init__(self, params: dict[str, Any]) -> None:
        self.params: dict[str, Any] = params
        self.closed: ClosedJaxpr = params["jaxpr"]
        self.consts, self.carried = _numbers_of_operands(params)

    @property
    def body(self) -> Jaxpr:
        """The program of a step, without its constants."""
        body: Jaxpr = self.closed.jaxpr
        return body

    def divide(self, operands: Sequence[Item]) -> tuple[list[Item], list[Item], list[Item]]:
        """Operands of the scan, or variables of its body: the constants, the carried values, and the inputs."""
        first = self.consts + self.carried
        return list(operands[:self.consts]), list(operands[self.consts:first]), list(operands[first:])

    def run(self, step: Callable[[list[Array], list[Array]], tuple[list[Array], list[Array]]], carry: list[Any],
            inputs: list[Any]) -> tuple[list[Array], list[Array]]:
        """The last carried values and the results of all steps of another step function."""
        options = {name: self.params[name] for name in ("length", "reverse", "unroll")}
        results: tuple[list[Array], list[Array]] = lax.scan(step, carry, inputs, **options)
        return results


def _numbers_of_operands(params: dict[str, Any]) -> tuple[int, int]:
    """The number of constants and of carried values of a scan."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carried, _ = params["ft_in"].unpack()  # JAX 0.11 groups the operands in a tree
    return len(consts.vals), len(carried.vals)
