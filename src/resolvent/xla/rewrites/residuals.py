"""Results of a scan that are cheaper to compute again than to store.

The forward pass of a recurrent network stores for each step the arrays that its backward pass needs: a gate p, and also
1 - p and p (1 - p). Storing takes most of the time, because the arrays of all steps are larger than a core's cache. A
result is not stored if sums, differences and products compute it from other stored results or from the scan's inputs,
and if only other scans read it, step by step. These scans compute it again in their own steps.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jaxtyping import Array

from resolvent.xla.rewrites.evaluation import bind, evaluate, programs, trace

__all__ = ["recompute_residuals", "recomputed_results"]

_CHEAP = frozenset(["add", "add_any", "mul", "neg", "sub"])


@dataclass(frozen=True)
class _Recomputed:
    """A result of a scan that is not stored.

    Attributes:
        variable: the result as a variable of the scan's body.
        equations: equations of the body that compute the variable from the sources, in order.
        sources: variable of the body -> its array of all steps, or another result that is not stored.
    """

    variable: Var
    equations: tuple[JaxprEqn, ...]
    sources: "dict[Var, Array | _Recomputed]"

    def arrays(self) -> list[Array]:
        """The arrays of all steps from which it is computed."""
        return [array for source in self.sources.values()
                for array in (source.arrays() if isinstance(source, _Recomputed) else [source])]

    def at_step(self, values: dict[int, Array]) -> Array:
        """The result of a step.

        Args:
            values: id of an array of all steps -> its entry of this step.
        """
        step: dict[Any, Array] = {variable: source.at_step(values) if isinstance(source, _Recomputed)
                                  else values[id(source)] for variable, source in self.sources.items()}
        for equation in self.equations:
            operands = [v.val if isinstance(v, Literal) else step[v] for v in equation.invars]
            step[equation.outvars[0]] = bind(equation, operands)[0]
        return step[self.variable]


def recompute_residuals(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program whose scans recompute cheap results of other scans; the program itself without such results."""
    if next(recomputed_results(closed.jaxpr), None) is None:
        return closed
    removed = _removed(closed.jaxpr)

    def rule(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
        if equation.primitive.name != "scan":
            return bind(equation, operands, recompute_residuals)
        return _scan(equation.params, operands, removed.get(id(equation), {}))

    return trace(closed, lambda *args: evaluate(closed, args, rule))


def recomputed_results(jaxpr: Jaxpr) -> Iterator[Any]:
    """The shapes of the results of scans, of all steps, that are computed again instead of stored."""
    removed = _removed(jaxpr)
    for equation in jaxpr.eqns:
        recipes = removed.get(id(equation), {})
        yield from (equation.outvars[equation.params["num_carry"] + number].aval for number in recipes)
        for closed in programs(equation):
            yield from recomputed_results(closed.jaxpr)


def _removed(jaxpr: Jaxpr) -> dict[int, dict[int, "_Recipe"]]:
    """id of a scan -> number of a result that need not be stored -> its recipe."""
    scans = [equation for equation in jaxpr.eqns if equation.primitive.name == "scan"]
    if len(scans) < 2:
        return {}
    uses = Counter(v for v in (*jaxpr.outvars, *(v for equation in jaxpr.eqns for v in equation.invars))
                   if isinstance(v, Var))
    of_steps = Counter((v, scan.params["length"]) for scan in scans
                       for v in scan.invars[scan.params["num_consts"] + scan.params["num_carry"]:]
                       if isinstance(v, Var))
    removed = {}
    for scan in scans:
        length, carried = scan.params["length"], scan.params["num_carry"]
        candidates = {number for number, v in enumerate(scan.outvars[carried:])
                      if 0 < uses[v] == of_steps[v, length]}
        if recipes := _recipes(scan.params, candidates):
            removed[id(scan)] = recipes
    return removed


@dataclass(frozen=True)
class _Recipe:
    """The equations of a body that compute a result from sources: stored results or inputs of the step."""

    variable: Var
    equations: tuple[JaxprEqn, ...]
    sources: tuple[Var, ...]


def _recipes(params: dict[str, Any], candidates: set[int]) -> dict[int, _Recipe]:
    body: Jaxpr = params["jaxpr"].jaxpr
    carried = params["num_carry"]
    results: list[Any] = body.outvars[carried:]
    inputs = body.invars[params["num_consts"] + carried:]
    producers: dict[Any, JaxprEqn] = {v: equation for equation in body.eqns for v in equation.outvars}
    order = {id(equation): i for i, equation in enumerate(body.eqns)}
    stored = {v for number, v in enumerate(results) if number not in candidates and isinstance(v, Var)}

    def sources(v: Any, equations: dict[int, JaxprEqn]) -> list[Var] | None:
        """The sources of v, whose equations are added to ``equations``; None if it has to be stored."""
        if isinstance(v, Literal):
            return []
        if v in stored or v in inputs:
            return [v]
        equation = producers.get(v)
        if equation is None or equation.primitive.name not in _CHEAP:
            return None
        of_operands: list[Var] = []
        for operand in equation.invars:
            of_operand = sources(operand, equations)
            if of_operand is None:
                return None
            of_operands += of_operand
        equations[order[id(equation)]] = equation
        return of_operands

    # A result that no cheap equation computes must be stored, and is then a source of the others.
    for number in sorted(candidates):
        v = results[number]
        producer = producers.get(v)
        if isinstance(v, Var) and (producer is None or producer.primitive.name not in _CHEAP) and v not in inputs:
            stored.add(v)
    recipes = {}
    first = {v: number for number, v in reversed(list(enumerate(results)))}
    for number in sorted(candidates):
        v, equations = results[number], dict[int, JaxprEqn]()
        if v in stored and first[v] == number:
            continue
        of_result = sources(v, equations)
        if of_result is None:
            stored.add(v)
        elif of_result:
            recipes[number] = _Recipe(v, tuple(equations[i] for i in sorted(equations)),
                                      tuple(dict.fromkeys(of_result)))
    return recipes


def _scan(params: dict[str, Any], operands: Sequence[Any], recipes: dict[int, _Recipe]) -> list[Any]:
    """The results of a scan, of which some are not stored, and whose inputs may be such results."""
    closed, consts, carried = recompute_residuals(params["jaxpr"]), params["num_consts"], params["num_carry"]
    # The body may have been traced again, so variables are those of the original one.
    body: Jaxpr = params["jaxpr"].jaxpr
    inputs = operands[consts + carried:]
    arrays = {id(a): a for x in inputs for a in (x.arrays() if isinstance(x, _Recomputed) else [x])}
    results = len(body.outvars) - carried
    stored = [number for number in range(results) if number not in recipes]

    def step(carry: list[Array], at_step: list[Array]) -> tuple[list[Array], list[Array]]:
        values = dict(zip(arrays, at_step, strict=True))
        x = [v.at_step(values) if isinstance(v, _Recomputed) else values[id(v)] for v in inputs]
        outputs = evaluate(closed, [*operands[:consts], *carry, *x], bind)
        return outputs[:carried], [outputs[carried + number] for number in stored]

    last, outputs = lax.scan(step, list(operands[consts:consts + carried]), list(arrays.values()),
                             length=params["length"], reverse=params["reverse"], unroll=params["unroll"])
    of_all_steps: dict[Any, Any] = dict(zip(body.invars[consts + carried:], inputs, strict=True))
    of_all_steps |= {body.outvars[carried + number]: array for number, array in zip(stored, outputs, strict=True)}
    by_number: dict[int, Any] = dict(zip(stored, outputs, strict=True))
    for number, recipe in recipes.items():
        by_number[number] = _Recomputed(recipe.variable, recipe.equations,
                                        {v: of_all_steps[v] for v in recipe.sources})
    return [*last, *(by_number[number] for number in range(results))]
