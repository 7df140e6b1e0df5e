"""Functions configured by mappings: names, types, defaults, help and validation come from the functions themselves.

A *component* is a mapping with a ``name``, which picks a part of a registry, and with that part's arguments. The
registry follows from the annotated type of the parameter that the component is for. So the signatures and docstrings
of the configured functions are the only declaration of what an experiment file may say.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from resolvent.arguments import hints_of
from resolvent.comparisons.experiment.docstrings import help_of
from resolvent.comparisons.experiment.file_types import file_type, join_path, key_text, read_setting, with_type
from resolvent.comparisons.experiment.own_parts import describe_failure, is_own_part, own_part
from resolvent.comparisons.experiment.registry import Component, Registry, component_of
from resolvent.errors import InputError, alternatives, quote, shorten


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function: a plain value, a component, or a mapping from labels to components.

    Attributes:
        type: the type of a plain value in a file; None if a file cannot hold it.
        default: its default, or ``inspect.Parameter.empty``.
        help: its description in the docstring.
        component: what it takes, if it is a component.
    """

    name: str
    type: Any
    default: Any
    help: str
    component: Component | None

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def default_part(self) -> str | None:
        """The name of the part that is its default."""
        if self.component is None or self.is_required or self.default is None or _is_number(self.default):
            return None
        found = self.component.registry.find(type(self.default).__name__)
        return None if found is None or found[1] is not type(self.default) else found[0]


@cache
def parameters(function: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters of a function or a class that a file can set, by name."""
    hints, texts = hints_of(function), help_of(function)
    result = {}
    for name, p in inspect.signature(function).parameters.items():
        hint = hints.get(name, Any)
        component = component_of(hint)
        if component or file_type(hint) is not None or p.default is inspect.Parameter.empty:
            result[name] = Parameter(name, file_type(hint), p.default, texts.get(name, ""), component)
    return result


@dataclass(frozen=True)
class Bound:
    """A function with validated arguments, not yet called.

    Attributes:
        name: its name as a part, or None if it is fixed.
        values: its plain arguments, with every default.
        parts: its components, by parameter; of a mapping of components, by parameter and label.
        path: the path of its settings in the file, for errors.
        kinds: what a function of the user's own must return; empty for a part of the library.
    """

    function: Callable[..., Any]
    name: str | None
    values: Mapping[str, Any]
    parts: Mapping[str, "Bound | dict[str, Bound]"]
    path: str
    kinds: tuple[type, ...] = ()

    def part(self, key: str) -> "Bound":
        """The component of a parameter that takes one."""
        part = self.parts[key]
        assert isinstance(part, Bound)
        return part

    def labelled(self, key: str) -> dict[str, "Bound"]:
        """The components of a parameter that takes several, by label; empty if there are none."""
        parts = self.parts.get(key, {})
        assert isinstance(parts, dict)
        return parts

    def settings(self) -> dict[str, Any]:
        """The settings as a file would state them, with every default."""
        named: dict[str, Any] = {} if self.name is None else {"name": self.name}
        parts = {key: {label: p.settings() for label, p in part.items()} if isinstance(part, dict) else part.settings()
                 for key, part in self.parts.items()}
        order = [p for p in parameters(self.function) if p in self.values or p in parts]
        return named | {p: parts[p] if p in parts else _as_lists(self.values[p]) for p in order}

    def codes(self) -> dict[str, str]:
        """The functions of the user's own, as a file names them -> the digest of their code (``digest_of_code``)."""
        codes = {}
        if self.name is not None and self.kinds:
            from resolvent.simulator.checkpoint.identity import digest_of_code  # few files have parts of the user's own

            codes[self.name] = digest_of_code(self.function)
        for part in self.parts.values():
            for inner in part.values() if isinstance(part, dict) else (part,):
                codes |= inner.codes()
        return codes

    def build(self, **supplied: Any) -> Any:
        """Call the function, after those of its parts.

        Args:
            supplied: arguments that the experiment supplies. Every function that has such a parameter, and no setting
                for it in the file, receives them.
        """
        arguments = dict(self.values)
        for key, part in self.parts.items():
            arguments[key] = ({label: p.build(**supplied) for label, p in part.items()} if isinstance(part, dict)
                              else part.build(**supplied))
        known = parameters(self.function)
        arguments |= {key: value for key, value in supplied.items() if key in known and key not in arguments}
        if self.kinds:
            return self._build_own_part(arguments)
        try:
            return self.function(**arguments)
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, InputError) and not self.path:
                raise
            message = f"{self.path or self.name}: {error.args[0] if error.args else error}"
            if isinstance(error, InputError):  # of its own kind: missing data stay missing data
                error.args = (message,)
                raise
            raise InputError(message) from error

    def _build_own_part(self, arguments: Mapping[str, Any]) -> Any:
        """Call a function of the user's own, which may raise anything and return anything."""
        try:
            part = self.function(**arguments)
        except Exception as error:
            reason = str(error) if isinstance(error, InputError) else describe_failure(error)
            raise InputError(f"{self.path}: {self.name}: {reason}") from error
        if not isinstance(part, self.kinds):
            raise InputError(f"{self.path}: {self.name} returned a {type(part).__name__}, and a "
                             f"{' or '.join(kind.__name__ for kind in self.kinds)} is needed: return one")
        return part


def bind(function: Callable[..., Any], settings: Any, *, path: str = "", name: str | None = None,
         supplied: frozenset[str] = frozenset()) -> Bound:
    """Check settings against a function's signature and add every default.

    Args:
        supplied: parameters that need not be set because the experiment supplies them.
    """
    if not isinstance(settings, Mapping):
        raise InputError(f"{path or 'the experiment'}: expected a mapping of settings, got {quote(settings)}")
    known = parameters(function)
    hidden = frozenset(key for key in supplied if key in known and known[key].component is None)
    _check_keys(settings, known, hidden, path, is_named=name is not None)
    parts: dict[str, Bound | dict[str, Bound]] = {}
    values: dict[str, Any] = {}
    for key, p in known.items():
        if key in hidden:
            continue
        if key not in settings and key not in supplied and p.is_required:
            raise InputError(f"{join_path(path, key)}: missing; {p.help or 'it has no default'}")
        if p.component is not None:
            if key in supplied and key not in settings:
                continue  # also if it has a default, such as the solver of robust_interpolation
            part = _bind_parts(p, settings, join_path(path, key))
            if part is not None:
                parts[key] = part
        elif key in settings:
            values[key] = read_setting(p.type, settings[key], join_path(path, key))
        else:
            values[key] = with_type(p.type, p.default)
    # The experiment supplies a component that the file does not mention; an explicit null stays None.
    absent = {key: None for key, p in known.items() if p.component and p.component.is_optional and key not in parts
              and (key in settings or key not in supplied)}
    return Bound(function, name, values | absent, parts, path)


def _check_keys(settings: Mapping[str, Any], known: Mapping[str, Parameter], hidden: frozenset[str], path: str, *,
                is_named: bool) -> None:
    allowed = [*(("name",) if is_named else ()), *(key for key in known if key not in hidden)]
    for key in settings:
        if key in hidden:
            raise InputError(f"{join_path(path, key)}: the experiment supplies it; remove this setting")
        if key == "stragglers" and key not in known:
            raise InputError(f"{join_path(path, key)}: one policy for stragglers applies to all methods: set it in the "
                             "participation, such as {name: stragglers, share: 0.5, work: drop}. Only fedavg and "
                             "fedprox can have a policy of their own")
        if key not in known:
            raise InputError(f"{join_path(path, key)}: unknown key"
                             f"{alternatives(key_text(key), allowed, 'allowed here:')}")


def _bind_parts(p: Parameter, settings: Mapping[str, Any], path: str) -> "Bound | dict[str, Bound] | None":
    """The part, or the labelled parts, that settings and the default state for a parameter; None if neither does."""
    component = p.component
    assert component is not None
    setting = settings.get(p.name)
    if setting is None and (p.name not in settings or component.is_optional):
        if component.is_mapping or p.is_required or p.default is None:
            return None
        setting = p.default if _is_number(p.default) else {"name": p.default_part}
    if not component.is_mapping:
        return _bind_part(component.registry, setting, path, p.default_part)
    if isinstance(setting, list | tuple):
        setting = label_parts(setting, path)
    if not isinstance(setting, Mapping) or not setting:
        raise InputError(f"{path}: expected a mapping from labels to {component.registry.plural}, or a list of their "
                         f"names, at least one, got {quote(setting)}")
    parts: dict[str, Bound] = {}
    for key, part in setting.items():
        if not isinstance(key, str | int | float) or isinstance(key, bool):
            raise InputError(f"{path}: {quote(key)} cannot be a label: put text in quotes")
        if str(key) in parts:
            raise InputError(f"{join_path(path, key)}: two {component.registry.plural} have this label, one as a "
                             "number and one as text: rename one of them")
        parts[str(key)] = _bind_part(component.registry, part, join_path(path, key))
    return parts


def label_parts(items: Sequence[Any], path: str) -> dict[str, Any]:
    """The mapping from labels to parts that a list of parts stands for: each label is the name of the part.

    >>> label_parts(["local", {"name": "fedprox", "mu": 0.5}], "algorithms")
    {'local': 'local', 'fedprox': {'name': 'fedprox', 'mu': 0.5}}
    """
    labelled: dict[str, Any] = {}
    for number, item in enumerate(items):
        label = label_of(item)
        if label is None:
            raise InputError(f"{join_path(path, number)}: expected a name, or a mapping with a name, got {quote(item)}")
        if label in labelled:
            raise InputError(f"{join_path(path, number)}: {quote(label)} is in the list twice: write a mapping with a "
                             f"label for each, such as {{first: {shorten(label)}, second: {shorten(label)}}}")
        labelled[label] = item
    return labelled


def label_of(item: Any) -> str | None:
    """The label of a part in a list: its name. None if it has none."""
    name = item.get("name") if isinstance(item, Mapping) else item
    return name if isinstance(name, str) else None


def _bind_part(registry: Registry, settings: Any, path: str, default: str | None = None) -> Bound:
    if isinstance(settings, str):
        settings = {"name": settings}
    elif registry.number and _is_number(settings):
        settings = {"name": registry.number[0], registry.number[1]: settings}
    if not isinstance(settings, Mapping):
        raise InputError(f"{path}: expected the name of a {registry.title} or a mapping with its name, "
                         f"got {quote(settings)}")
    written = settings.get("name", default or registry.default)
    if written is None:
        raise InputError(f"{join_path(path, 'name')}: missing; give one {registry.title} of "
                         f"{', '.join(registry.functions)}")
    arguments = {key: value for key, value in settings.items() if key != "name"}
    if is_own_part(written):
        part = own_part(written, registry, join_path(path, "name"))
        return replace(bind(part, arguments, path=path, name=written, supplied=registry.supplied), kinds=registry.kinds)
    found = registry.find(written) if isinstance(written, str) else None
    if found is None:
        known = alternatives(str(written), registry.functions, "allowed:")
        raise InputError(f"{join_path(path, 'name')}: there is no {registry.title} {quote(written)}{known}, or "
                         "module:function for your own")
    name, function = found
    return bind(function, arguments, path=path, name=name, supplied=registry.supplied)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_lists(value: Any) -> Any:
    return [_as_lists(item) for item in value] if isinstance(value, tuple | list) else value
