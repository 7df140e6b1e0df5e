"""A digest of a traced program: equal in another process, and different as soon as it computes something else."""

import dataclasses
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from resolvent.simulator.checkpoint.fingerprint import digest_of_array, digest_of_texts
from resolvent.simulator.checkpoint.own_code import digest_of_code

# Parameters of operations that change no number: names of functions, where arrays are, and what a compiler may do. The
# rules of derivatives are in the program where it takes derivatives; elsewhere they are functions that are not called.
_IGNORED = frozenset([
    "bwd", "compiler_options_kvs", "ctx_mesh", "debug_info", "donated_invars", "effects", "fwd_jaxpr_thunk",
    "in_layouts", "in_shardings", "inline", "jvp_jaxpr_fun", "jvp_jaxpr_thunk", "keep_unused", "mesh", "name",
    "name_and_src_info", "out_layouts", "out_shardings", "out_trees", "sharding", "symbolic_zeros"])


def digest_of_program(program: ClosedJaxpr) -> str:
    """SHA-256 of a traced program and its constants.

    It does not depend on the names of variables and functions, on files and lines, or on addresses in memory. A
    function that the program calls back is described by its code.
    """
    return _Digests().of_closed(program)


class _Digests:
    """The digests of the parts of one program. A part that occurs several times is read once."""

    def __init__(self) -> None:
        self._of_programs: dict[int, str] = {}
        self._of_arrays: dict[int, str] = {}

    def of_closed(self, program: ClosedJaxpr) -> str:
        return digest_of_texts([self.of_jaxpr(program.jaxpr), *map(self._array, program.consts)])

    def of_jaxpr(self, program: Jaxpr) -> str:
        if (known := self._of_programs.get(id(program))) is None:
            known = self._of_programs[id(program)] = digest_of_texts(self._jaxpr(program))
        return known

    def _jaxpr(self, program: Jaxpr) -> Iterator[str]:
        numbers: dict[Any, int] = {}

        def define(variables: Any) -> Iterator[str]:
            for variable in variables:
                numbers[variable] = len(numbers)
                yield _type(variable)

        def read(atom: Any) -> str:
            return self._array(atom.val) + _type(atom) if isinstance(atom, Literal) else str(numbers[atom])

        yield from define(program.constvars)
        yield "arguments"
        yield from define(program.invars)
        for equation in program.eqns:
            yield equation.primitive.name
            yield from map(read, equation.invars)
            for key in sorted(equation.params):
                if key not in _IGNORED:
                    yield key
                    yield from self._value(equation.params[key])
            yield from define(equation.outvars)
        yield "results"
        yield from map(read, program.outvars)

    def _value(self, x: Any) -> Iterator[str]:
        """A parameter of an operation."""
        if isinstance(x, ClosedJaxpr):
            yield self.of_closed(x)
        elif isinstance(x, Jaxpr):
            yield self.of_jaxpr(x)
        elif x is None or isinstance(x, bool | int | float | complex | str | bytes | np.dtype):
            yield f"{type(x).__name__} {x!r}"
        elif isinstance(x, Enum):
            yield f"{type(x).__qualname__}.{x.name}"
        elif isinstance(x, np.ndarray | np.generic | jax.Array):
            yield self._array(x)
        elif isinstance(x, jax.core.ShapedArray | jax.ShapeDtypeStruct):
            yield f"{x.dtype}{list(x.shape)}"
        elif isinstance(x, tuple | list):
            yield f"{len(x)} values"
            for item in x:
                yield from self._value(item)
        elif isinstance(x, Mapping):
            yield f"{len(x)} entries"
            for key in sorted(x, key=str):
                yield str(key)
                yield from self._value(x[key])
        elif isinstance(x, set | frozenset):
            yield from sorted(map(str, x))
        elif dataclasses.is_dataclass(x) and not isinstance(x, type):
            yield type(x).__qualname__
            for field in dataclasses.fields(x):
                if field.name not in _IGNORED:
                    yield from self._value(getattr(x, field.name))
        else:
            yield digest_of_code(x) or _name(x)

    def _array(self, x: Any) -> str:
        if not isinstance(x, np.ndarray | jax.Array) or np.ndim(x) == 0:
            return digest_of_array(x)
        if (known := self._of_arrays.get(id(x))) is None:
            known = self._of_arrays[id(x)] = digest_of_array(x)
        return known


def _type(variable: Var | Literal) -> str:
    aval: Any = variable.aval
    return _type_text(getattr(aval, "dtype", type(aval).__name__), getattr(aval, "shape", ()))


@cache
def _type_text(dtype: Any, shape: tuple[int, ...]) -> str:  # NumPy takes longer to name a type than to look it up
    return f"{dtype}{list(shape)}"


def _name(x: Any) -> str:
    kind = x if hasattr(x, "__qualname__") else type(x)
    return f"{kind.__module__}.{kind.__qualname__}"
