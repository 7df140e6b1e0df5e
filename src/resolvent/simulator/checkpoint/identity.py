"""What identifies a run: its settings, the user's own code, and the versions that computed it.

A checkpoint stores them, so that a run continues only from its own checkpoint, and the error names what differs.
A run is resumed only with the code of its first rounds. Code is *own* if it is neither Python's nor an installed
package's.
"""

import ast
import dataclasses
import dis
import functools
import platform
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from resolvent.data.federated import FederatedData
from resolvent.data.files.array_files import PackedArray
from resolvent.data.files.own_rows import OwnRows
from resolvent.errors import InputError, shorten
from resolvent.simulator.plan import Plan
from resolvent.simulator.storage.tree_files import digest_of_array, digest_of_texts
from resolvent.simulator.user_errors import is_of_user
from resolvent.xla.compiled_programs import free_programs, remembered

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


def fingerprint_of(part: Any) -> str:
    """SHA-256 of ``describe(part)``."""
    return digest_of_texts(describe(part))


def describe(x: Any) -> Iterator[str]:
    """A value as a sequence of texts, which depends on its structure and its numbers alone.

    Arrays are described by dtype, shape and digest, numbers and texts by their value, functions by module, qualified
    name, defaults and the values that they enclose, and dataclasses, named tuples and containers by type and content.
    An object of any other type is described by its type.
    """
    yield from _describe(x, frozenset())


def _describe(x: Any, parents: frozenset[int]) -> Iterator[str]:
    if id(x) in parents:  # a function that encloses itself
        yield "recursion"
        return
    parents |= {id(x)}
    if x is None or isinstance(x, bool | int | float | complex | str | bytes | np.dtype):
        yield f"{type(x).__name__} {x!r}"
    elif isinstance(x, Enum):
        yield f"{_name_of(type(x))}.{x.name}"
    elif isinstance(x, PackedArray | OwnRows):
        yield f"array {x.digest}"
    elif isinstance(x, np.ndarray | np.generic | jax.Array):
        yield f"array {digest_of_array(x)}"
    elif isinstance(x, type):
        yield _name_of(x)
    elif (contents := _contents_of(x)) is not None:
        yield f"{_name_of(x) if _is_function(x) else _name_of(type(x))} {len(contents)}"
        for name, value in contents.items():
            yield name
            yield from _describe(value, parents)
    else:
        yield _name_of(type(x))


def _contents_of(x: Any) -> dict[str, Any] | None:
    """The parts of a value, by name; None for a value without parts that can be described."""
    if isinstance(x, FederatedData):  # names of parties and notes for the reader do not change a run
        names = ("x", "y", "splits", "task", "classes", "vocabulary", *(() if x.weights is None else ("weights",)))
        return {name: getattr(x, name) for name in names}
    if dataclasses.is_dataclass(x):
        return {field.name: getattr(x, field.name) for field in dataclasses.fields(x) if hasattr(x, field.name)}
    if isinstance(x, Mapping):
        return {str(key): x[key] for key in sorted(x, key=str)}
    if isinstance(x, tuple | list):
        return {str(i): value for i, value in enumerate(x)}
    if isinstance(x, set | frozenset):
        return {str(i): value for i, value in enumerate(sorted(x, key=str))}
    if isinstance(x, functools.partial):
        return {"function": x.func, "positional": x.args, "named": x.keywords}
    return _contents_of_function(x) if _is_function(x) else None


def _contents_of_function(function: Callable[..., Any]) -> dict[str, Any]:
    """The default values of a function, and the values that it encloses; for a method, also its object."""
    bound = {"self": function.__self__} if hasattr(function, "__self__") else {}
    plain: Any = getattr(function, "__func__", getattr(function, "__wrapped__", function))
    cells = getattr(plain, "__closure__", None) or ()
    names = getattr(getattr(plain, "__code__", None), "co_freevars", ())
    enclosed = {name: _cell_contents(cell) for name, cell in zip(names, cells, strict=False)}
    return {**bound, "defaults": getattr(plain, "__defaults__", None), "enclosed": enclosed}


def _cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the enclosing function has not assigned it yet
        return None


def _is_function(x: Any) -> bool:
    return callable(x) and hasattr(x, "__qualname__")


def _name_of(x: Any) -> str:
    return f"{getattr(x, '__module__', '')}.{getattr(x, '__qualname__', '')}"


STORED_KEYS = ("fingerprint", "versions", "code")  # what a checkpoint stores of an identity

_UNTRACED = "code of the metrics"
_PACKAGES = ("resolvent", "jax", "equinox", "optax")
_ADVICE = "choose another folder, or start afresh without resume"


class RunIdentity(NamedTuple):
    """What a checkpoint must have in common with the run that continues from it.

    Attributes:
        fingerprint: part of the run (``algorithm``, ``data``, ``seed``, ...) -> SHA-256 of its settings.
        versions: package, or ``python`` or ``backend`` -> version or name.
        code: SHA-256 of the user's own code that is traced; empty if there is none.
        names: names of the functions and classes of this code; not stored.
    """

    fingerprint: Mapping[str, str]
    versions: Mapping[str, str]
    code: str
    names: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """What a checkpoint stores."""
        return {key: getattr(self, key) for key in STORED_KEYS}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "RunIdentity":
        """The identity that a checkpoint stores."""
        return cls(*(stored[key] for key in STORED_KEYS))

    def check(self, stored: "RunIdentity", path: Path) -> None:
        """Compare with the identity that a checkpoint stores.

        Warns if a version differs: the rest of the run may then round differently.
        """
        names = [*self.fingerprint, *(name for name in stored.fingerprint if name not in self.fingerprint)]
        different = [name for name in names if self.fingerprint.get(name) != stored.fingerprint.get(name)]
        if different:
            raise InputError(f"the checkpoint {path} belongs to another run, with another value of "
                             f"{', '.join(different)}: {_ADVICE}")
        changed = {name: f"{name} {stored.versions.get(name, 'unknown')}, now {self.versions[name]}"
                   for name in self.versions if self.versions[name] != stored.versions.get(name)}
        if self.code != stored.code:
            own = shorten(", ".join(self.names)) or "this run"
            if "python" in changed:
                raise InputError(f"the checkpoint {path} was written with {changed['python']}. The code of {own} "
                                 "cannot be compared between versions of Python: continue with the version of the "
                                 f"first rounds, {_ADVICE}")
            raise InputError(f"the checkpoint {path} was computed by other code: {own} has been edited since. Undo the "
                             f"edit, {_ADVICE}")
        if changed:
            warnings.warn(f"the checkpoint {path} was written with {'; '.join(changed.values())}. The run continues, "
                          "but its results can differ in rounding from those of one version", stacklevel=2)


def identity_of(plan: Plan) -> RunIdentity:
    """The identity of a planned run. It reads all samples.

    The number of rounds, diagnostics, callbacks, the scheduler and the progress report may differ between the parts of
    a run. The metrics and the clock, which JAX does not trace, are identified by their settings and their code.
    """
    task, evaluation = plan.task, plan.evaluation
    metrics = {} if evaluation.metrics is None else evaluation.metrics.metrics
    untraced = (metrics, evaluation.clock, None if task.problem is None else type(task.problem).evaluate_shared)
    parts = {
        "algorithm": plan.algorithm,
        **({"problem": task.problem} if task.data is None else {"model": task.model, "data": task.data}),
        "participation": plan.participation,
        "seed": plan.seed,
        "memory": plan.memory,
        "evaluate_every": evaluation.every,
        "evaluate_parties": len(evaluation.parties),
        "metrics": metrics,
        "clock": evaluation.clock,
        "precision": "float64" if jax.config.values["jax_enable_x64"] else "float32",
    }
    traced = _traced_parts(plan)
    return RunIdentity({name: fingerprint_of(part) for name, part in parts.items()}
                       | {_UNTRACED: digest_of_code(untraced)},
                       {name: version(name) for name in _PACKAGES} | versions_of_code(),
                       digest_of_code(traced), own_parts(traced))


def forget_programs_of_edited_code(plan: Plan) -> None:
    """Clear JAX's caches if the user's own code has changed since JAX compiled it in this process.

    JAX keeps the value of a global variable that a function reads as a constant of the program, and finds the program
    by the function: after another value in a notebook it would run the program of the earlier one.
    """
    traced = _traced_parts(plan)
    if not (code := digest_of_code(traced)):
        return
    structure = jax.tree.structure(traced)
    if remembered.setdefault(structure, code) != code:
        free_programs()
        remembered[structure] = code


def _traced_parts(plan: Plan) -> tuple[Any, ...]:
    """The parts of a plan whose code JAX traces."""
    return plan.algorithm, plan.task.model, plan.task.problem, plan.participation


def versions_of_code() -> dict[str, str]:
    """The version of Python without its third number, and the backend: bytecode and rounding depend on them."""
    return {"python": ".".join(platform.python_version_tuple()[:2]), "backend": jax.default_backend()}
