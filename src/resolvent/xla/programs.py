"""The parts of a program (a jaxpr) between marked calls.

JAX's cache of compiled programs finds a part again that another program has too.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jaxtyping import Array

from xla_cpu_rewrites.programs import CALLS, Scan, bind, evaluate, shape_of, trace

Item = TypeVar("Item")

_MAX_REPEATED_BYTES = 2**20  # of a model for all parties that a shared part reads
_mark: ContextVar[str | None] = ContextVar("mark", default=None)


class Part(NamedTuple):
    """A part of a program.

    Attributes:
        closed: its program; its results are variables of the whole program.
        arguments: the variables of the whole program that it reads, one for each argument.
        name: the name of the marked call that it is; None: it is what other parts leave.
    """

    closed: ClosedJaxpr
    arguments: list[Any]
    name: str | None


@contextlib.contextmanager
def marking(name: str) -> Iterator[None]:
    """Mark with this name what is called by ``call_part`` within."""
    token = _mark.set(name)
    try:
        yield
    finally:
        _mark.reset(token)


def call_part(f: Callable[..., Item], *args: Any) -> Item:
    """``f(*args)``, within ``marking`` as a call with a name.

    Its operands are the arrays of ``args``, also if two of them are the same, and further arrays that ``f`` reads.
    """
    name = _mark.get()
    return f(*args) if name is None else marked_call(f, name, *args)


def marked_call(f: Callable[..., Item], name: str, *args: Any) -> Item:
    """``f(*args)`` as a call with this name, at which ``cut`` divides a program."""
    def call(*args: Any) -> Item:
        return f(*args)

    call.__name__ = call.__qualname__ = name
    result: Item = jax.jit(call)(*args)
    return result


def divide_loops(closed: ClosedJaxpr, name: str, loop_name: str) -> ClosedJaxpr:
    """The program with loops that are cut at marked calls.

    Args:
        name: the name of the marked calls. Of ``lax.map`` of a function with such calls, each call becomes a loop
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

    def repeated(x: Any) -> Array:
        return jnp.broadcast_to(x, (scan.params["length"], *jnp.shape(x)))

    def is_small_model(v: Any, part: Part) -> bool:
        """Whether a part that reads it as rows is the same for programs in which all rows are equal."""
        same = (v.aval.shape, v.aval.dtype) in [(r.aval.shape, r.aval.dtype) for r in part.closed.jaxpr.outvars]
        return bool(part.name and same and v.aval.ndim
                    and scan.params["length"] * v.aval.size * v.aval.dtype.itemsize <= _MAX_REPEATED_BYTES)

    for part in cut(scan.closed, name):
        mapped = [v in in_rows or is_small_model(v, part) for v in part.arguments]

        def loop(*operands: Any, part: Part = part, mapped: Sequence[bool] = mapped) -> list[Any]:
            def step(rows: list[Any]) -> list[Any]:
                row = iter(rows)
                results: list[Any] = jaxpr_as_fun(part.closed)(*(
                    next(row) if is_row else x for x, is_row in zip(operands, mapped, strict=True)))
                return results

            results: list[Any] = lax.map(step, [x for x, is_row in zip(operands, mapped, strict=True) if is_row])
            return results

        arguments = [repeated(values[v]) if is_row and v not in in_rows else values[v]
                     for v, is_row in zip(part.arguments, mapped, strict=True)]
        results = loop(*arguments) if part.name is None else marked_call(loop, loop_name, *arguments)
        values.update(zip(part.closed.jaxpr.outvars, results, strict=True))
        in_rows.update(part.closed.jaxpr.outvars)

    return [repeated(v.val) if isinstance(v, Literal) else values[v] if v in in_rows else repeated(values[v])
            for v in scan.body.outvars]


def cut(closed: ClosedJaxpr, *names: str) -> list[Part]:
    """The parts of a program, in an order in which they can run; one part if no call has one of these names.

    Between marked calls is only what they need; everything else is in the last part, so that there are few parts.
    """
    jaxpr = closed.jaxpr
    levels: dict[Any, int] = {}  # number of marked calls that a variable depends on, one after the other
    for equation in jaxpr.eqns:
        level = max((levels.get(v, 0) for v in equation.invars if isinstance(v, Var)), default=0)
        levels |= dict.fromkeys(equation.outvars, level + _is_marked(equation, *names))
    needed: set[Any] = set()  # by marked calls
    plain: dict[int, list[JaxprEqn]] = {}
    marked: dict[int, list[JaxprEqn]] = {}
    last: list[JaxprEqn] = []
    for equation in reversed(jaxpr.eqns):
        level = levels[equation.outvars[0]] if equation.outvars else 0
        if _is_marked(equation, *names):
            marked.setdefault(level - 1, []).insert(0, equation)
        elif not needed.isdisjoint(equation.outvars):
            plain.setdefault(level, []).insert(0, equation)
        else:
            last.insert(0, equation)
            continue
        needed.update(v for v in equation.invars if isinstance(v, Var))
    groups = [group for level in range(len(marked)) for group in (
        (plain.get(level, []), None), *(([equation], equation.params["name"]) for equation in marked[level]))]
    return _parts(closed, [(equations, name) for equations, name in (*groups, (last, None)) if equations])


def _is_marked(equation: JaxprEqn, *names: str) -> bool:
    return equation.primitive.name in CALLS and equation.params["name"] in names


def _parts(closed: ClosedJaxpr, groups: Sequence[tuple[list[JaxprEqn], str | None]]) -> list[Part]:
    """The parts with these equations, each with the results that later parts or the results of the program need."""
    read = {v for v in closed.jaxpr.outvars if isinstance(v, Var)}
    consts = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    parts: list[Part] = []
    for equations, name in reversed(groups):
        results = [v for equation in equations for v in equation.outvars if v in read]
        computed = {v for equation in equations for v in equation.outvars}
        operands = dict.fromkeys(v for equation in equations for v in equation.invars
                                 if isinstance(v, Var) and v not in computed)
        constants = [v for v in operands if v in consts]
        arguments = [v for v in operands if v not in consts]
        read.update(arguments)
        parameters = arguments
        if name is not None:  # a parameter for each operand: a call with one variable twice is a call with two
            equation = equations[0]
            arguments = [v for v in equation.invars if isinstance(v, Var) and v not in consts]
            parameters = jax.make_jaxpr(lambda *args: args)(*map(shape_of, arguments)).jaxpr.invars
            unread = iter(parameters)
            equations = [equation.replace(invars=[
                v if isinstance(v, Literal) or v in consts else next(unread) for v in equation.invars])]
        program = Jaxpr(constants, parameters, results, equations, closed.jaxpr.effects)
        parts.insert(0, Part(ClosedJaxpr(program, [consts[v] for v in constants]), arguments, name))
    return parts
