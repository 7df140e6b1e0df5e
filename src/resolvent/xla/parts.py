"""Programs in parts: a program that is cut at marked calls, so that other programs can share what is compiled.

Passed to XLA as several programs, a part is found in JAX's cache of compiled programs if another program has the same.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from resolvent.xla.programs import CALLS, Scan, bind, evaluate, trace

Result = TypeVar("Result")
_mark: ContextVar[str | None] = ContextVar("mark", default=None)


class Part(NamedTuple):
    """A part of a program.

    Attributes:
        closed: its program; arguments and results are variables of the whole program.
        is_marked: whether it is a marked call, and nothing else.
    """

    closed: ClosedJaxpr
    is_marked: bool


@contextlib.contextmanager
def marking(name: str) -> Iterator[None]:
    """Mark with this name what is called by ``call_part`` within."""
    token = _mark.set(name)
    try:
        yield
    finally:
        _mark.reset(token)


def call_part(f: Callable[[], Result]) -> Result:
    """``f()``, within ``marking`` as a call with a name, whose operands are the arrays that ``f`` reads."""
    name = _mark.get()
    return f() if name is None else marked_call(f, name)


def marked_call(f: Callable[[], Result], name: str) -> Result:
    """``f()`` as a call with this name, at which ``cut`` divides a program."""
    def call() -> Result:
        return f()

    call.__name__ = call.__qualname__ = name
    result: Result = jax.jit(call)()
    return result


def divide_loops(closed: ClosedJaxpr, name: str, loop_name: str) -> ClosedJaxpr:
    """The program with loops that are cut at marked calls.

    Args:
        name: the name of the marked calls. Of ``jax.lax.map`` of a function with such calls, each call becomes a loop
            of its own, and so does what is between the calls.
        loop_name: the name of the calls of these loops, at which the result can be cut.
    """
    def rule(equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        if equation.primitive.name == "scan":
            scan = Scan(equation.params)
            if scan.carried == 0 and any(_is_marked(step, name) for step in scan.body.eqns):
                return _divided(scan, operands, name, loop_name)
        return bind(equation, operands)

    return trace(closed, lambda *args: evaluate(closed, args, rule))


def _divided(scan: Scan, operands: Sequence[Any], name: str, loop_name: str) -> list[Any]:
    values: dict[Any, Any] = dict(zip(scan.body.invars, operands, strict=True))
    in_rows = {*scan.divide(scan.body.invars)[2]}
    for part in cut(scan.closed, name):
        jaxpr = part.closed.jaxpr

        def loop(part: Part = part, jaxpr: Jaxpr = jaxpr) -> list[Any]:
            def step(rows: list[Any]) -> list[Any]:
                of_step = values | dict(zip((v for v in jaxpr.invars if v in in_rows), rows, strict=True))
                return jaxpr_as_fun(part.closed)(*(of_step[v] for v in jaxpr.invars))  # type: ignore[no-any-return]

            return jax.lax.map(step, [values[v] for v in jaxpr.invars if v in in_rows])

        values.update(zip(jaxpr.outvars, marked_call(loop, loop_name) if part.is_marked else loop(), strict=True))
        in_rows.update(jaxpr.outvars)
    return [values[v] if v in in_rows else
            jnp.broadcast_to(v.val if isinstance(v, Literal) else values[v], (scan.params["length"], *v.aval.shape))
            for v in scan.body.outvars]


def cut(closed: ClosedJaxpr, name: str) -> list[Part]:
    """The parts of a program, in an order in which they can run; one part if no call is marked.

    Between marked calls is only what they need; everything else is in the last part, so that there are few parts.
    """
    jaxpr = closed.jaxpr
    levels: dict[Any, int] = {}  # number of marked calls that a variable depends on, one after the other
    for equation in jaxpr.eqns:
        level = max((levels.get(v, 0) for v in equation.invars if isinstance(v, Var)), default=0)
        levels |= dict.fromkeys(equation.outvars, level + _is_marked(equation, name))
    needed: set[Any] = set()  # by marked calls
    plain: dict[int, list[JaxprEqn]] = {}
    marked: dict[int, list[JaxprEqn]] = {}
    last = []
    for equation in reversed(jaxpr.eqns):
        level = levels[equation.outvars[0]] if equation.outvars else 0
        if _is_marked(equation, name):
            marked.setdefault(level - 1, []).insert(0, equation)
        elif not needed.isdisjoint(equation.outvars):
            plain.setdefault(level, []).insert(0, equation)
        else:
            last.insert(0, equation)
            continue
        needed.update(v for v in equation.invars if isinstance(v, Var))
    groups = [group for level in range(len(marked)) for group in (
        (plain.get(level, []), False), *(([equation], True) for equation in marked[level]))]
    return _parts(closed, [(equations, is_marked) for equations, is_marked in (*groups, (last, False)) if equations])


def _is_marked(equation: JaxprEqn, name: str) -> bool:
    return equation.primitive.name in CALLS and equation.params["name"] == name


def _parts(closed: ClosedJaxpr, groups: Sequence[tuple[list[JaxprEqn], bool]]) -> list[Part]:
    """The parts with these equations, each with the results that later parts or the results of the program need."""
    read = {v for v in closed.jaxpr.outvars if isinstance(v, Var)}
    consts = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    parts: list[Part] = []
    for equations, is_marked in reversed(groups):
        results = [v for equation in equations for v in equation.outvars if v in read]
        computed = {v for equation in equations for v in equation.outvars}
        operands = dict.fromkeys(v for equation in equations for v in equation.invars
                                 if isinstance(v, Var) and v not in computed)
        constants = [v for v in operands if v in consts]
        arguments = [v for v in operands if v not in consts]
        read.update(arguments)
        program = Jaxpr(constants, arguments, results, equations, closed.jaxpr.effects)
        parts.insert(0, Part(ClosedJaxpr(program, [consts[v] for v in constants]), is_marked))
    return parts
