"""The user's own code in the parts of a run: which functions and classes it is, and a digest of what they say.

A run is resumed only with the code of its first rounds. Code is *own* if it is neither Python's nor an installed
package's.
"""

import ast
import dataclasses
import dis
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

from resolvent.simulator.storage.tree_files import digest_of_array, digest_of_texts
from resolvent.simulator.user_errors import is_of_user

_LIBRARIES = ("resolvent", "xla_cpu_rewrites")
_GLOBALS = frozenset(["LOAD_GLOBAL", "LOAD_NAME"])
_ATTRIBUTES = frozenset(["LOAD_ATTR", "LOAD_METHOD"])
# Where an object has the functions that it stands for: jax.jit, custom derivatives, methods of Equinox modules.
_WRAPPED = ("__wrapped__", "fun", "jvp", "fwd", "bwd", "method")
_PRIVATE_CLOSURES = frozenset(["jax", "jaxlib", "numpy"])  # which have caches besides functions
_PLAIN = (bool, int, float, complex, str, bytes, np.dtype)
# What Python and its class decorators write into a class, from what the class itself says.
_WRITTEN_BY_PYTHON = frozenset(["__dict__", "__weakref__", "__module__", "__doc__", "__qualname__", "__slots__",
                                "__abstractmethods__", "_abc_impl", "__hash__", "__annotations__", "__match_args__",
                                "__dataclass_fields__", "__dataclass_params__", "__firstlineno__", "__parameters__",
                                "__orig_bases__", "__static_attributes__"])


def digest_of_code(x: Any) -> str:
    """SHA-256 of the own code that a value can run; empty if it has none.

    The arrays of the value itself, if it is a pytree, are settings and not a part of its code. A function is described
    by its bytecode, constants, defaults, the values that it encloses, and the globals that it names, and so on for the
    functions among these; an object of an own class by that class and its attributes. Comments and layout do not
    matter. An edit that changes no number can change the digest, such as another order of two independent lines. What a
    function finds by a name that it computes is not found.
    """
    walk = _Walk()
    digest = digest_of_texts(walk.describe(_without_arrays(x)))
    return digest if walk.names else ""


def own_parts(x: Any) -> tuple[str, ...]:
    """The names of the own functions and classes that a value can run."""
    walk = _Walk()
    for _ in walk.describe(_without_arrays(x)):
        pass
    return tuple(walk.names)


def _without_arrays(x: Any) -> Any:
    return jax.tree.map(lambda leaf: None if isinstance(leaf, np.ndarray | jax.Array) else leaf, x)


class _Walk:
    """One walk over a value and all that its code can reach.

    Attributes:
        names: the names of the own functions and classes that it met, in order, without repetition.
    """

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self._known: dict[int, int] = {}
        self._alive: list[Any] = []  # an id is that of one object only as long as the object lives

    def describe(self, x: Any) -> Iterator[str]:
        if x is None or isinstance(x, _PLAIN):
            yield f"{type(x).__name__} {x!r}"
            return
        if not isinstance(x, tuple | frozenset | CodeType):  # whether two equal constants are one object varies
            if id(x) in self._known:
                yield f"known {self._known[id(x)]}"
                return
            self._known[id(x)] = len(self._known)
            self._alive.append(x)
        if isinstance(x, np.ndarray | np.generic | jax.Array):
            if x.dtype == object:  # of Python's objects, which are described one by one
                yield f"array {x.shape}"
                yield from self._all(x.ravel().tolist())
            else:
                yield f"array {digest_of_array(x)}"
        elif isinstance(x, Enum):
            yield f"{type(x).__qualname__}.{x.name}"
        elif isinstance(x, type):
            yield from self._class(x)
        elif isinstance(x, ModuleType):
            yield f"module {x.__name__}"
        elif isinstance(x, CodeType):
            yield from self._code(x, None)
        elif isinstance(x, Mapping):
            yield f"{len(x)} entries"
            for key in sorted(x, key=str):
                yield from self.describe(key)
                yield from self.describe(x[key])
        elif isinstance(x, tuple | list):
            yield f"{type(x).__name__} of {len(x)}"
            yield from self._all(x)
        elif isinstance(x, set | frozenset):
            yield from sorted(repr(item) if isinstance(item, _PLAIN) else _name(item) for item in x)
        else:
            yield from self._function_or_object(x)

    def _all(self, values: Iterable[Any]) -> Iterator[str]:
        for value in values:
            yield from self.describe(value)

    def _function_or_object(self, x: Any) -> Iterator[str]:
        if isinstance(x, functools.partial):
            yield from self._all((x.func, x.args, x.keywords))
        elif isinstance(x, MethodType):
            yield from self._all((x.__self__, x.__func__))
        elif isinstance(x, property):
            yield from self._all((x.fget, x.fset))
        elif isinstance(x, staticmethod | classmethod):
            yield from self.describe(x.__func__)
        elif isinstance(x, FunctionType):
            yield from self._function(x)
        elif rules := [rule for name in _WRAPPED if isinstance(rule := getattr(x, name, None), FunctionType)]:
            yield from self._all(rules)
        elif isinstance(x, BuiltinFunctionType) or hasattr(x, "__qualname__"):
            yield _name(x)
        else:
            yield from self._object(x)

    def _object(self, x: Any) -> Iterator[str]:
        """An object: its class, and what it holds."""
        yield getattr(x, "__name__", "")
        yield from self.describe(type(x))
        attributes = getattr(x, "__dict__", None)
        if dataclasses.is_dataclass(x):
            yield from self.describe({field.name: getattr(x, field.name, None) for field in dataclasses.fields(x)})
        elif _is_own_module(type(x).__module__):
            yield from self.describe(attributes)
        elif isinstance(attributes, dict):  # an object of a package, such as numpy.vectorize, can hold own functions
            yield from self.describe({name: value for name, value in attributes.items()
                                      if isinstance(value, FunctionType | MethodType | functools.partial)})

    def _class(self, kind: type) -> Iterator[str]:
        if not _is_own_module(kind.__module__):
            yield _name(kind)
            return
        self.names.setdefault(kind.__qualname__)
        for base in kind.__mro__:
            yield _name(base)
            if _is_own_module(base.__module__):
                yield from self.describe({key: value for key, value in vars(base).items()
                                          if key not in _WRITTEN_BY_PYTHON})

    def _function(self, function: FunctionType) -> Iterator[str]:
        # Not by its attribute __module__, which functools.wraps copies from one function to another.
        module = function.__globals__.get("__name__", "")
        if _is_own_module(module):
            self.names.setdefault(function.__qualname__)
            yield from self._code(function.__code__, function)
            yield from self._all((function.__defaults__, function.__kwdefaults__))
        else:
            yield f"{module}.{function.__qualname__}"
            yield from self.describe(getattr(function, "__wrapped__", None))
        is_jax = module.partition(".")[0] in _PRIVATE_CLOSURES
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # the enclosing function has not assigned it yet
                continue
            if not is_jax or isinstance(content, FunctionType):
                yield from self.describe(content)

    def _code(self, code: CodeType, function: FunctionType | None) -> Iterator[str]:
        """The instructions and constants of a function and of those in it, and the globals that they name."""
        doc = None if function is None else function.__doc__
        constants = [c for c in code.co_consts if doc is None or c != doc]
        yield from (code.co_code.hex(), " ".join(code.co_names), " ".join(code.co_freevars), str(code.co_flags))
        for constant in constants:
            if isinstance(constant, CodeType):
                yield from self._code(constant, None)
            else:
                yield from self.describe(constant)
        if function is not None:
            instructions = [*_instructions_of(code)]
            names = dict.fromkeys(str(i.argval) for i in instructions if i.opname in _ATTRIBUTES)
            for name in dict.fromkeys(str(i.argval) for i in instructions if i.opname in _GLOBALS):
                if name in function.__globals__:
                    yield from self._global(name, function.__globals__[name], names)
            for name in dict.fromkeys(str(i.argval) for i in instructions if i.opname == "IMPORT_NAME"):
                yield from self._imported(name, function.__globals__.get("__package__") or "")

    def _global(self, name: str, value: Any, names: Mapping[str, None]) -> Iterator[str]:
        yield name
        yield from self.describe(value)
        if isinstance(value, ModuleType) and _is_own_module(value.__name__):
            for attribute in names:
                if hasattr(value, attribute):
                    yield from self._global(attribute, getattr(value, attribute), {})

    def _imported(self, name: str, package: str) -> Iterator[str]:
        """The text of an own module that a function imports when it runs: perhaps it is not imported yet."""
        for title in (name, f"{package}.{name}"):
            try:
                spec = find_spec(title)
            except (ImportError, ValueError):
                continue
            origin = "" if spec is None else spec.origin or ""
            if origin.endswith(".py") and is_of_user(origin):
                self.names.setdefault(title)
                yield ast.dump(ast.parse(Path(origin).read_bytes()))


def _instructions_of(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions_of(constant)


@functools.cache
def _is_own_module(name: str) -> bool:
    """Whether a module is neither of this library, nor of Python, nor of an installed package."""
    if name.partition(".")[0] in (*_LIBRARIES, "", *sys.builtin_module_names):
        return False
    if (module := sys.modules.get(name)) is None:
        return name not in sys.stdlib_module_names
    file = getattr(module, "__file__", None)
    return not isinstance(file, str) or is_of_user(file)  # a notebook has no file


def _name(x: Any) -> str:
    return f"{getattr(x, '__module__', '')}.{getattr(x, '__qualname__', type(x).__qualname__)}"
