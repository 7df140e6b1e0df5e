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

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var
from jaxtyping import Array

from xla_cpu_rewrites.passes import Pass, also_inside
from xla_cpu_rewrites.programs import EquationRule, Scan, bind, count_uses, evaluate, producers_of

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
        """The result of a step, from the entries of this step, by the id of the array of all steps."""
        step: dict[Any, Array] = {variable: source.at_step(values) if isinstance(source, _Recomputed)
                                  else values[id(source)] for variable, source in self.sources.items()}
        for equation in self.equations:
            operands = [v.val if isinstance(v, Literal) else step[v] for v in equation.invars]
            step[equation.outvars[0]] = bind(equation, operands)[0]
        return step[self.variable]


def _find_results(jaxpr: Jaxpr) -> Iterator[Sequence[Any]]:
    """The results of scans, of all steps, that are computed again instead of stored."""
    removed = _removed(jaxpr)
    return ([equation.outvars[Scan(equation.params).carried + number].aval] for equation in jaxpr.eqns
            for number in removed.get(id(equation), ()))


def _rule_of(jaxpr: Jaxpr, args: Sequence[Any]) -> EquationRule:
    removed = _removed(jaxpr)

    def rule(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
        if equation.primitive.name != "scan":
            return bind(equation, operands, recompute_residuals)
        return _scan(Scan(equation.params), operands, removed.get(id(equation), {}))

    return rule


recompute_residuals = Pass(also_inside(_find_results), _rule_of, "scan", "computed again")


def _removed(jaxpr: Jaxpr) -> dict[int, dict[int, "_Recipe"]]:
    """id of a scan -> number of a result that need not be stored -> its recipe."""
    scans = [equation for equation in jaxpr.eqns if equation.primitive.name == "scan"]
    if len(scans) < 2:
        return {}
    uses = count_uses(jaxpr)
    of_steps = Counter((v, scan.params["length"]) for scan in scans for v in Scan(scan.params).divide(scan.invars)[2]
                       if isinstance(v, Var))
    removed = {}
    for scan in scans:
        length, carried = scan.params["length"], Scan(scan.params).carried
        candidates = {number for number, v in enumerate(scan.outvars[carried:])
                      if 0 < uses[v] == of_steps[v, length]}
        if recipes := _recipes(Scan(scan.params), candidates):
            removed[id(scan)] = recipes
    return removed


@dataclass(frozen=True)
class _Recipe:
    """The equations of a body that compute a result from sources: stored results or inputs of the step."""

    variable: Var
    equations: tuple[JaxprEqn, ...]
    sources: tuple[Var, ...]


def _recipes(scan: Scan, candidates: set[int]) -> dict[int, _Recipe]:
    body, inputs = scan.body, scan.divide(scan.body.invars)[2]
    results: list[Any] = body.outvars[scan.carried:]
    producers = producers_of(body)
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


def _scan(scan: Scan, operands: Sequence[Any], recipes: dict[int, _Recipe]) -> list[Any]:
    """The results of a scan, of which some are not stored, and whose inputs may be such results."""
    closed, carried = recompute_residuals(scan.closed), scan.carried
    # The body may have been traced again, so variables are those of the original one.
    body = scan.body
    constants, first, inputs = scan.divide(operands)
    arrays = {id(a): a for x in inputs for a in (x.arrays() if isinstance(x, _Recomputed) else [x])}
    results = len(body.outvars) - carried
    stored = [number for number in range(results) if number not in recipes]

    def step(carry: list[Array], at_step: list[Array]) -> tuple[list[Array], list[Array]]:
        values = dict(zip(arrays, at_step, strict=True))
        x = [v.at_step(values) if isinstance(v, _Recomputed) else values[id(v)] for v in inputs]
        outputs = evaluate(closed, [*constants, *carry, *x], bind)
        return outputs[:carried], [outputs[carried + number] for number in stored]

    last, outputs = scan.run(step, first, list(arrays.values()))
    of_all_steps: dict[Any, Any] = dict(zip(scan.divide(body.invars)[2], inputs, strict=True))
    of_all_steps |= {body.outvars[carried + number]: array for number, array in zip(stored, outputs, strict=True)}
    by_number: dict[int, Any] = dict(zip(stored, outputs, strict=True))
    for number, recipe in recipes.items():
        by_number[number] = _Recomputed(recipe.variable, recipe.equations,
                                        {v: of_all_steps[v] for v in recipe.sources})
    return [*last, *(by_number[number] for number in range(results))]
