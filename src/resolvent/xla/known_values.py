"""Evaluation of a program (a jaxpr) of which only some inputs are known, up to operations that are marked by name.

A known value is computed when it is read, and only then. Loops and branches that contain a marked operation are
followed step by step, so that the inputs of the operation are known in every step; all others are one operation.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun

from xla_cpu_rewrites.programs import Scan, inner_jaxprs

_MAX_ITERATIONS = 100_000
_CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr")

Value: TypeAlias = Callable[[], Any] | None  # computes a known value when it is read; None: unknown
OnMark: TypeAlias = Callable[[list[Value]], None]


class NotKnownError(Exception):
    """Raised where a marked operation is in a loop or a branch whose condition is unknown."""


def known(value: Any) -> Value:
    """A value that is known already."""
    return lambda: value


def count_marked(jaxpr: Jaxpr, mark: str) -> int:
    """The number of marked operations in a program; an operation in a loop counts once."""
    return sum(1 if equation.params.get("name") == mark else
               sum(count_marked(inner, mark) for inner in inner_jaxprs(equation)) for equation in jaxpr.eqns)


def follow(program: ClosedJaxpr, inputs: Sequence[Value], mark: str, on_mark: OnMark) -> list[Value]:
    """Evaluate what is known of a program.

    Args:
        mark: name of the marked operations, which are functions in ``jax.jit``. Their results are unknown.
        on_mark: is called with the inputs of each marked operation, in the order of the evaluation.

    Returns:
        The outputs.

    Raises:
        NotKnownError: whether, or how often, a marked operation is evaluated depends on an unknown value.
    """
    return _Follower(mark, on_mark).run(program, inputs)


class _Follower:
    def __init__(self, mark: str, on_mark: OnMark) -> None:
        self._mark, self._on_mark = mark, on_mark
        self._has_mark = cache(lambda jaxpr: count_marked(jaxpr, mark) > 0)

    def run(self, program: ClosedJaxpr | Jaxpr, inputs: Sequence[Value]) -> list[Value]:
        """The outputs of a program."""
        jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
        constants = program.consts if isinstance(program, ClosedJaxpr) else []
        values: dict[Any, Value] = dict(zip(jaxpr.constvars, map(known, constants), strict=True))
        values |= dict(zip(jaxpr.invars, inputs, strict=True))

        def read(variable: Any) -> Value:
            return known(variable.val) if isinstance(variable, Literal) else values[variable]

        for equation in jaxpr.eqns:
            results = self._results(jaxpr, equation, [*map(read, equation.invars)])
            values |= dict(zip(equation.outvars, results, strict=True))
        return [*map(read, jaxpr.outvars)]

    def _results(self, jaxpr: Jaxpr, equation: JaxprEqn, inputs: list[Value]) -> list[Value]:
        if equation.params.get("name") == self._mark:
            self._on_mark(inputs)
            return [None] * len(equation.outvars)
        if not any(map(self._has_mark, inner_jaxprs(equation))):
            return _computed(jaxpr, equation, inputs)
        name = equation.primitive.name
        if name in ("while", "scan", "cond"):
            results: list[Value] = getattr(self, f"_{name}")(equation.params, inputs)
            return results
        called = next((equation.params[key] for key in _CALLED if key in equation.params), None)
        if called is None:
            raise NotKnownError(f"in the operation {name}")
        return self.run(called, inputs)

    def _while(self, params: dict[str, Any], inputs: list[Value]) -> list[Value]:
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        of_condition, of_body, carry = inputs[:first], inputs[first:second], inputs[second:]
        for _ in range(_MAX_ITERATIONS):
            condition, = self.run(params["cond_jaxpr"], [*of_condition, *carry])
            if condition is None:
                raise NotKnownError("in a loop whose length depends on a state")
            if not condition():
                return carry
            carry = self.run(params["body_jaxpr"], [*of_body, *carry])
        raise NotKnownError(f"in a loop of more than {_MAX_ITERATIONS} iterations")

    def _scan(self, params: dict[str, Any], inputs: list[Value]) -> list[Value]:
        scan = Scan(params)
        constants, carry, rows = scan.divide(inputs)
        steps = range(params["length"])
        for i in reversed(steps) if params["reverse"] else steps:
            carry = self.run(scan.closed, [*constants, *carry, *(_row(x, i) for x in rows)])[:scan.carried]
        return [*carry, *[None] * (len(scan.body.outvars) - scan.carried)]

    def _cond(self, params: dict[str, Any], inputs: list[Value]) -> list[Value]:
        if inputs[0] is None:
            raise NotKnownError("in a branch that depends on a state")
        return self.run(params["branches"][int(inputs[0]())], inputs[1:])


def _computed(jaxpr: Jaxpr, equation: JaxprEqn, inputs: list[Value]) -> list[Value]:
    """The results of an operation without a marked one inside."""
    if any(value is None for value in inputs):
        return [None] * len(equation.outvars)
    operands = [(variable, value) for variable, value in zip(equation.invars, inputs, strict=True)
                if not isinstance(variable, Literal)]
    alone = jaxpr.replace(constvars=[], invars=[variable for variable, _ in operands],  # type: ignore[no-untyped-call]
                          outvars=equation.outvars, eqns=[equation], debug_info=None)

    @cache
    def results() -> Any:
        with jax.ensure_compile_time_eval():
            return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*[value() for _, value in operands])  # type: ignore[misc]

    return [lambda i=i: results()[i] for i in range(len(equation.outvars))]  # type: ignore[misc]


def _row(value: Value, i: int) -> Value:
    return None if value is None else lambda: value()[i]
