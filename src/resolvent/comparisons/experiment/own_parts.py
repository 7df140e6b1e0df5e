"""Parts of the user's own in experiment files: ``module:function``, or ``path/to/file.py:function``.

They are bound and checked by their signatures, as the parts of the library are.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from resolvent.arguments import hints_of
from resolvent.comparisons.experiment.file_types import file_type
from resolvent.comparisons.experiment.registry import Registry, component_of
from resolvent.errors import InputError, nearest, quote, shorten


class _Permission(NamedTuple):
    """The names of the parts that are allowed, None for all, and the folder that is searched for their modules."""

    names: frozenset[str] | None = None
    folder: Path | None = None


_ALL = _Permission()
_permission = ContextVar("permission", default=_ALL)


@contextlib.contextmanager
def limit_own_parts(names: Collection[str] | None, folder: Path | None = None) -> Iterator[None]:
    """Refuse other parts of the user's own than the named ones; nothing of the refused ones is imported.

    Args:
        names: the parts that an experiment of another person may name; None: all.
        folder: the folder that is searched for their modules, before the environment; default: the current folder.
    """
    token = _permission.set(_Permission(None if names is None else frozenset(names), folder))
    try:
        yield
    finally:
        _permission.reset(token)


def is_own_part(written: object) -> bool:
    """Whether a name in a file is that of a part of the user's own: it has a colon, which names of the library lack."""
    return isinstance(written, str) and ":" in written


def own_part(written: str, registry: Registry, path: str) -> Callable[..., Any]:
    """The function or class of the user that a file names.

    Args:
        written: ``module:function``, with a module that can be imported from the current folder or the environment; or
            ``file.py:function``, with a path relative to the current folder.
    """
    permission = _permission.get()
    if permission.names is not None and written not in permission.names:
        raise InputError(f"{path}: {shorten(written)} is not a part of the library, and this participant does not "
                         "allow it: use a part of the library, let every site name the model in models of its "
                         "site.yaml, or run a simulation or a rehearsal")
    source, _, name = written.rpartition(":")
    module = _module(source, path, permission.folder)
    part = getattr(module, name, None)
    if part is None:
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"{path}: {shorten(source)} has no function {quote(name)}{nearest(name, public)}")
    if not callable(part) or isinstance(part, registry.kinds):
        raise InputError(f"{path}: {shorten(written)} is not a function: name a function, or a class, that returns the "
                         f"{registry.title}")
    part = registry.adapt(part)
    _check_parameters(part, written, registry, path)
    return part


@cache
def _module(source: str, path: str, folder: Path | None) -> ModuleType:
    try:
        if source.endswith(".py"):
            return _file_module((folder or Path()) / Path(source).expanduser(), path)
        with _importing_from(folder or Path.cwd()):
            return importlib.import_module(source)
    except InputError:
        raise
    except Exception as error:  # whatever the module raises when it is imported
        raise InputError(f"{path}: {shorten(source)} cannot be imported: {describe_failure(error)}") from error


def _file_module(file: Path, path: str) -> ModuleType:
    file = file.resolve()
    if not file.is_file():
        raise InputError(f"{path}: there is no file {shorten(file)}")
    # The same name in every process, unlike with hash(): checkpoints identify a part by its module and its name.
    name = f"resolvent_parts_of_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations are looked up in it
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """A folder is searched for modules first, as the current folder by ``python -m``."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _check_parameters(part: Callable[..., Any], written: str, registry: Registry, path: str) -> None:
    title = f"{path}: {shorten(written)}"
    try:
        hints, signature = hints_of(part), inspect.signature(part)
    except (NameError, TypeError, ValueError) as error:
        raise InputError(f"{title}: its signature cannot be read: {shorten(error)}") from error
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InputError(f"{title}: it has the parameter {name}, which is not named in a call: give every "
                             "parameter a name")
        hint = hints.get(name, Any)
        is_settable = component_of(hint) is not None or file_type(hint) is not None
        if not is_settable and parameter.default is parameter.empty and name not in registry.supplied:
            raise InputError(f"{title}: an experiment file cannot set its parameter {name}: annotate it with int, "
                             "float, bool, str, a list of these, or a part such as LocalSolver, or give it a default")


def describe_failure(error: BaseException) -> str:
    """An exception in one line, with the line of the user's program that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    lines = f" ({Path(frame.filename).name}, line {frame.lineno})" if frame else ""
    return f"{type(error).__name__}: {shorten(error)}{lines}"
