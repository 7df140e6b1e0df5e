"""Passes: rearrangements of a program that change several of its equations together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from jax.extend.core import ClosedJaxpr, Jaxpr

from xla_cpu_rewrites.programs import EquationRule, evaluate, programs, trace
from xla_cpu_rewrites.values import plain

# A program -> for each operation that is changed, those shapes that a report shows.
Find: TypeAlias = Callable[[Jaxpr], Iterator[Sequence[Any]]]


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

    @classmethod
    def of(cls, operation: str, avals: Iterable[Any], change: str) -> "Replacement":
        """The replacement of an operation with operands of these shapes."""
        return cls(operation, tuple(aval.str_short() for aval in avals), change)


@dataclass(frozen=True)
class Pass:
    """A rearrangement of a program; the program itself if there is nothing to change.

    Attributes:
        rule: (the program, its arguments) -> the rule for its equations.
        operation: name of the operations in reports; empty: they are not reported.
        change: what is compiled instead, in a few words.
    """

    find: Find
    rule: Callable[[Jaxpr, Sequence[Any]], EquationRule]
    operation: str = ""
    change: str = ""

    def __call__(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """The rearranged program."""
        if next(self.find(closed.jaxpr), None) is None:
            return closed
        return trace(closed, lambda *args: plain(evaluate(closed, args, self.rule(closed.jaxpr, args))))

    def replacements(self, closed: ClosedJaxpr) -> Iterator[Replacement]:
        """The changed operations."""
        if self.operation:
            yield from (Replacement.of(self.operation, avals, self.change) for avals in self.find(closed.jaxpr))


def also_inside(find: Find) -> Find:
    """What ``find`` returns for a program, and for all programs inside of its equations."""
    def find_all(jaxpr: Jaxpr) -> Iterator[Sequence[Any]]:
        yield from find(jaxpr)
        for equation in jaxpr.eqns:
            for closed in programs(equation):
                yield from find_all(closed.jaxpr)

    return find_all
