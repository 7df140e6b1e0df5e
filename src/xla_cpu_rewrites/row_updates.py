"""Steps that change those rows of a table that a minibatch has read, instead of the whole table.

The gradient of an embedding look-up is an array of the size of the table: zeros, to which the gradients of the rows of
a minibatch are added. A step of gradient descent then reads and writes several arrays of this size, although few rows
change. A step is a linear combination a w + b S + c v of the table w, such a gradient S and other arrays v. Here b
times the gradients of the rows are added to the rows of a w + c v. This is w itself without weight decay and without a
proximal term, whose weights are known at run time only: a loop of one pass or none computes a w + c v. The order of the
additions differs.

Only gradients of rewritten functions are changed in this way: ``rewrite`` marks them, by a rule that compiles the
original operation.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jaxtyping import Array

from xla_cpu_rewrites.deferred import Program
from xla_cpu_rewrites.programs import CALLS, bind, evaluate
from xla_cpu_rewrites.versions import supports_rewrites

State = TypeVar("State")

_MIN_BYTES = 2**18  # smallest size of a table
_MIN_ENTRIES_PER_UPDATE = 4  # smallest number of entries of a table for each entry of the rows of a minibatch
_MARKED = "fast_scatter-add"
_SIGNS = {"add": (1.0, 1.0), "add_any": (1.0, 1.0), "sub": (1.0, -1.0), "neg": (-1.0,), "copy": (1.0,)}


@dataclass(frozen=True, eq=False)
class _Rows:
    """A gradient that is zero except in some rows.

    Attributes:
        scatter: the equation that adds the updates to zeros.
    """

    scatter: JaxprEqn
    indices: Array
    updates: Array


# Pairs of a coefficient, a number or a scalar, and an array or ``_Rows``.
_Terms: TypeAlias = tuple[tuple[Any, Any], ...]


@dataclass(eq=False)
class _Combination:
    """A linear combination of arrays of the size of a table, which is computed when it is read.

    Attributes:
        compute: computes it as the original program does.
        entry: the value of all of its entries, if it is a broadcast number or scalar.
    """

    terms: _Terms
    compute: Callable[[], Array]
    entry: Any = None

    @cached_property
    def array(self) -> Array:
        """The array that ``compute`` returns, computed once."""
        return self.compute()

    @property
    def is_computed(self) -> bool:
        """Whether the program has read the array."""
        return "array" in vars(self)


def add_to_rows(table: Any, _: Any, updates: Any, **params: Any) -> Program | None:
    """The rule that marks additions to few rows of a large table."""
    is_marked = _is_large(table) and table.size >= _MIN_ENTRIES_PER_UPDATE * updates.size
    return partial(lax.scatter_add_p.bind, **params) if is_marked else None


def update_rows(step: Callable[[State], State]) -> Callable[[State], State]:
    """A step of an optimization that updates rows of tables where that is possible; equal up to rounding.

    Args:
        step: maps a state, a tree of arrays, to the next one. Its gradients are those of a function in ``rewrite``.
    """
    def call(state: State) -> State:
        leaves, structure = jax.tree.flatten(state)
        if not supports_rewrites() or not any(_is_large(leaf) for leaf in leaves):
            return step(state)
        closed = jax.make_jaxpr(step)(state)
        tables = {table.shape for table, _ in row_gradients(closed.jaxpr)}
        if tables:
            rule = _Rule(tables)
            leaves = rule.new_state(leaves, evaluate(closed, leaves, rule))
        else:
            leaves = jaxpr_as_fun(closed)(*leaves)
        new_state: State = jax.tree.unflatten(structure, leaves)
        return new_state

    return call


def row_gradients(jaxpr: Jaxpr) -> Iterator[tuple[Any, Any]]:
    """The shape of each marked gradient that is zero except in some rows, and that of the updates of these rows."""
    zeros = {equation.outvars[0] for equation in jaxpr.eqns if equation.primitive.name == "broadcast_in_dim"
             and isinstance(equation.invars[0], Literal) and equation.invars[0].val == 0}
    for equation in jaxpr.eqns:
        if equation.primitive.name == _MARKED and equation.invars[0] in zeros:
            table, _, updates = (v.aval for v in equation.invars)
            yield table, updates
        elif equation.primitive.name in CALLS:
            yield from row_gradients(equation.params["jaxpr"].jaxpr)


def _is_large(array: Any) -> bool:
    return bool(array.size * array.dtype.itemsize >= _MIN_BYTES)


class _Rule:
    """The rule for the equations of a step: arrays of the shapes of tables become linear combinations."""

    def __init__(self, tables: set[tuple[int, ...]]) -> None:
        self._tables = tables
        self._gradients: dict[_Rows, _Combination] = {}

    def __call__(self, equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        """The results of an equation, each an array or a ``_Combination``."""
        if equation.primitive.name in CALLS and any(row_gradients(equation.params["jaxpr"].jaxpr)):
            return evaluate(equation.params["jaxpr"], operands, self)
        shapes: list[Any] = [getattr(v.aval, "shape", None) for v in equation.outvars]
        combination = self._combine(equation, operands) if len(shapes) == 1 and shapes[0] in self._tables else None
        return bind(equation, _arrays(operands)) if combination is None else [combination]

    def new_state(self, state: Sequence[Array], values: Sequence[Any]) -> list[Array]:
        """The arrays of the state after a step, from the state before it and the new arrays and combinations."""
        rows = [_rows(value) for value in values]
        uses = Counter(gradient for of_value in rows for gradient in of_value)
        is_update = [len(of_value) == 1 and uses[of_value[0]] == 1 and any(base is before for _, base in value.terms)
                     for before, value, of_value in zip(state, values, rows, strict=True)]
        # What else reads a gradient is computed first: then the whole gradient exists in any case.
        arrays = [None if updated else _arrays([value])[0] for value, updated in zip(values, is_update, strict=True)]
        return [array if array is not None else value.array if self._gradients[of_value[0]].is_computed
                else _update(before, value.terms)
                for before, value, of_value, array in zip(state, values, rows, arrays, strict=True)]

    def _combine(self, equation: JaxprEqn, operands: list[Any]) -> _Combination | None:
        """The result of an equation as a linear combination, or None if it is none."""
        def compute() -> Array:
            result: Array = bind(equation, _arrays(operands))[0]
            return result

        name, scalars = equation.primitive.name, [_entry(x) for x in operands]
        if name == "broadcast_in_dim" and scalars[0] is not None:
            return _Combination((), compute, scalars[0])
        if name == _MARKED and isinstance(operands[0], _Combination) and not _terms(operands[0]):
            gradient = _Rows(equation, *_arrays(operands[1:]))
            self._gradients[gradient] = _Combination(((1.0, gradient),), compute)
            return self._gradients[gradient]
        if name in _SIGNS and all(np.ndim(x) or isinstance(x, _Combination) for x in operands):
            signed = [_scaled(_terms(x), sign) for x, sign in zip(operands, _SIGNS[name], strict=True)]
            return _Combination(_merged(term for terms in signed for term in terms), compute)
        if name == "mul" and any(scalar is not None for scalar in scalars):
            number = 0 if scalars[0] is not None else 1
            return _Combination(_scaled(_terms(operands[1 - number]), scalars[number]), compute)
        if name == "div" and scalars[1] is not None:
            return _Combination(_scaled(_terms(operands[0]), 1 / scalars[1]), compute)
        return None


def _update(table: Array, terms: _Terms) -> Array:
    """The linear combination ``terms``, of which one base is the table and one base is a gradient of rows."""
    (factor, rows), = (term for term in terms if isinstance(term[1], _Rows))
    (scale, _), = (term for term in terms if term[1] is table)
    others = [term for term in terms if term[1] is not table and term[1] is not rows]

    def combine(i: Array, table: Array) -> Array:
        # i is 0. XLA would compute terms that do not depend on i before the loop, also where it has no pass.
        unit = (i + 1).astype(table.dtype)
        dense = sum((coefficient * unit * base for coefficient, base in others), scale * table)
        return _add_rows(rows, dense, factor * rows.updates)

    is_dense = jnp.asarray(scale != 1)
    for coefficient, _ in others:
        is_dense |= coefficient != 0
    # The loop begins with an array of its own: XLA would otherwise copy the table, which the look-up reads as well.
    table = _add_rows(rows, table, jnp.where(is_dense, 0, factor * rows.updates))
    result: Array = lax.fori_loop(0, is_dense.astype(jnp.int32), combine, table)
    return result


def _add_rows(rows: _Rows, table: Array, updates: Array) -> Array:
    result: Array = bind(rows.scatter, [table, rows.indices, updates])[0]
    return result


def _rows(value: Any) -> list[_Rows]:
    """The gradients of rows in a linear combination."""
    return [base for _, base in value.terms if isinstance(base, _Rows)] if isinstance(value, _Combination) else []


def _entry(x: Any) -> Any:
    """The scalar that all entries are equal to, or None."""
    if isinstance(x, _Combination):
        return x.entry
    return x if np.ndim(x) == 0 else None


def _terms(x: Any) -> _Terms:
    if not isinstance(x, _Combination):
        return ((1.0, x),)
    is_zero = isinstance(x.entry, int | float | np.generic | np.ndarray) and x.entry == 0
    return x.terms if x.entry is None or is_zero else ((1.0, x.array),)


def _scaled(terms: _Terms, factor: Any) -> _Terms:
    return tuple((factor if isinstance(c, float) and c == 1 else c * factor, base) for c, base in terms)


def _merged(terms: Iterable[tuple[Any, Any]]) -> _Terms:
    """The terms with each base once."""
    merged: dict[int, tuple[Any, Any]] = {}
    for coefficient, base in terms:
        before = merged.get(id(base))
        merged[id(base)] = (coefficient if before is None else before[0] + coefficient, base)
    return tuple(merged.values())


def _arrays(values: Iterable[Any]) -> list[Any]:
    return [value.array if isinstance(value, _Combination) else value for value in values]
