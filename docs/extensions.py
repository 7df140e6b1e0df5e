"""Extensions of the reference: docstrings as Markdown, and the constructors of Equinox modules."""

import dataclasses
import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))

from hooks import markdown_of


class Labels(griffe.Extension):
    """Docstrings as Markdown: bold labels, code blocks, formulas, and what a subclass has to define."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change one docstring."""
        if obj.docstring:
            obj.docstring.value = markdown_of(obj.docstring.value)
            if obj.is_class and obj.parent.is_module and (names := abstract_methods(obj.path)):
                first, _, others = obj.docstring.value.partition("\n\n")
                defines = f"**To define in a subclass:** {', '.join(f'`{name}`' for name in names)}."
                obj.docstring.value = "\n\n".join(text for text in (first, defines, others) if text)


class Constructors(griffe.Extension):
    """Equinox modules are dataclasses without a decorator: their constructors follow from their fields.

    So do the arguments of a function whose options are the fields of a class (``arguments.with_options``).
    """

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Add a constructor to every class of the package that lacks one, and to functions their options."""
        for module in modules(pkg):
            for member in module.members.values():
                if not member.is_alias and member.is_class and "__init__" not in member.members:
                    runtime = getattr(imported(module.path), member.name, None)
                    if dataclasses.is_dataclass(runtime):
                        member.set_member("__init__", constructor(member, runtime))
                elif not member.is_alias and member.is_function:
                    runtime = getattr(imported(module.path), member.name, None)
                    if inspect.isfunction(runtime) and "__signature__" in vars(runtime):
                        add_options(member, runtime)


def abstract_methods(path: str) -> list[str]:
    """The abstract methods and attributes of a class in the order of their definition; none if it has no such class."""
    module, _, name = path.rpartition(".")
    found = getattr(imported(module), name, None)
    abstract = getattr(found, "__abstractmethods__", frozenset()) | getattr(found, "__abstractvars__", frozenset()) | \
        getattr(found, "__abstractclassvars__", frozenset())
    order = [member for base in reversed(getattr(found, "__mro__", ())) for member in
             (*getattr(base, "__annotations__", {}), *vars(base))]
    return sorted(abstract, key=lambda member: order.index(member) if member in order else len(order))


def imported(path: str) -> ModuleType | None:
    """The module, or None if it needs an extra that is not installed, such as the adapter of NVIDIA FLARE."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("resolvent"):
            raise
        return None


def modules(package: griffe.Module) -> list[griffe.Module]:
    """The package and all modules inside it."""
    inside = [m for m in package.members.values() if not m.is_alias and m.is_module]
    return [package, *(m for child in inside for m in modules(child))]


def constructor(cls: griffe.Class, runtime: Any) -> griffe.Function:
    """The constructor of a class: order and defaults from Python, annotations from the source."""
    parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
    for p in inspect.signature(runtime).parameters.values():
        field = next((c.members[p.name] for c in (cls, *cls.mro()) if p.name in c.members), None)
        parameters.append(griffe.Parameter(
            p.name, kind=getattr(griffe.ParameterKind, p.kind.name.lower()),
            annotation=getattr(field, "annotation", None),
            default=None if p.default is p.empty else default_of(p.default)))
    return griffe.Function("__init__", parameters=griffe.Parameters(*parameters), returns="None", parent=cls)


def add_options(function: griffe.Function, runtime: Any) -> None:
    """Give a function of a source and its options an argument for each option, and their descriptions."""
    source, options = function.parameters
    cls = function.modules_collection[options.annotation.canonical_path]
    _, first, *others = constructor(cls, runtime).parameters
    first.annotation = source.annotation
    function.parameters = griffe.Parameters(first, *others)
    function.docstring.value = markdown_of(inspect.cleandoc(runtime.__doc__))


def default_of(value: Any) -> str:
    """A default as source code."""
    return value.__name__ if inspect.isfunction(value) or inspect.isclass(value) else repr(value)
