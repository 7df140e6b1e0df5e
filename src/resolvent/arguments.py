"""Checks of arguments by the annotations of the functions and classes that they are for. Every room may import it.

An algorithm is traced by JAX before it runs, so that an argument of a wrong type would show as an error about a tracer,
far from its origin. ``checked`` and ``CheckedArguments`` refuse it when the function or the constructor is called, and
so they do with a number outside the interval of its annotation, such as ``Annotated[ArrayLike, "[0, 1]"]``. Traced
values pass as numbers, because sweeps trace learning rates and weights.
"""

import collections.abc
import dataclasses
import functools
import inspect
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import (
    Annotated,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import AbstractArray, ArrayLike

from resolvent.errors import InputError, Interval, check_range, nearest, quote

__all__ = ["CheckedArguments", "Rule", "check_arguments", "checked", "expected_values", "hints_of", "rule_of",
           "with_options"]

P = ParamSpec("P")
R = TypeVar("R")
Options = TypeVar("Options")
Source = TypeVar("Source")

_MAX_INTEGER = 2**31  # counts, ids and seeds are 32-bit integers in compiled programs
_MAX_NUMBER = float(np.finfo(np.float32).max)
_EXAMPLES = {"LocalSolver": "SGD(0.1)", "Algorithm": "fedavg(SGD(0.1))", "Participation": "Uniform(cohort=10)",
             "FederatedData": "FederatedData.from_arrays(inputs, labels)", "Model": "models.logistic(64, 10)",
             "Metric": "metrics.from_function(f, higher_is_better=True)", "Schedule": "schedules.Cosine(rounds=100)"}
_ARRAYS = (jax.Array, np.ndarray)
_ARRAY_LIKE = frozenset(get_args(ArrayLike))


class CheckedArguments:
    """Base class whose constructors check their arguments by their annotations.

    Subclasses are Equinox modules or dataclasses. The check is in ``__new__``, which runs before ``__init__`` and
    ``__check_init__``, and which JAX does not call when it rebuilds a pytree.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Check the arguments and create the object.

        Raises:
            InputError: an argument does not have the annotated type, or is a number that is not finite or is outside
                the annotated interval.
        """
        check_arguments(cls, args, kwargs)
        return super().__new__(cls)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that it checks its arguments by their annotations.

    The function then raises an ``InputError`` that names the function and the argument.

    >>> @checked
    ... def relax(step: float) -> float:
    ...     return step / 2
    >>> relax("0.5")
    Traceback (most recent call last):
        ...
    resolvent.errors.InputError: relax(step='0.5') must be a finite number
    """
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        check_arguments(call, args, kwargs)
        return function(*args, **kwargs)
    return call


def with_options(options: Callable[P, Options]) -> Callable[[Callable[[Source, Options], R]],
                                                            Callable[Concatenate[Source, P], R]]:
    """Decorate a function of a source and its options, so that each option is an argument of its own.

    The parameters, their defaults and their descriptions are those of the class of the options. Arguments are checked
    by their annotations, with the name of the function in errors. A field ``given`` of the options is no parameter: it
    gets the names of the arguments of the call.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Ways:
    ...     times: int = 2
    >>> @with_options(Ways)
    ... def repeat(text: str, ways: Ways) -> str:
    ...     return text * ways.times
    >>> repeat("ab"), repeat("ab", times=1)
    ('abab', 'ab')
    >>> repeat("ab", times="3")
    Traceback (most recent call last):
        ...
    resolvent.errors.InputError: repeat(times='3') must be an integer
    """
    settings = inspect.signature(options)

    def decorate(function: Callable[[Source, Options], R]) -> Callable[Concatenate[Source, P], R]:
        source, _ = inspect.signature(function).parameters.values()
        signature = settings.replace(parameters=[
            source, *(p for name, p in settings.parameters.items() if name != "given")])

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> R:
            try:
                arguments = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            given = {name: value for name, value in arguments.items() if name != source.name}
            check_arguments(function, (arguments[source.name],), {})
            check_arguments(options, (), given, title=function.__name__)
            if "given" in settings.parameters:
                given["given"] = frozenset(given)
            return function(arguments[source.name], options(**given))  # type: ignore[call-arg]

        annotations = {name: p.annotation for name, p in signature.parameters.items()}
        call.__annotations__ = annotations | {"return": function.__annotations__["return"]}
        call.__signature__ = signature.replace(  # type: ignore[attr-defined]
            return_annotation=function.__annotations__["return"])
        call.__doc__ = _with_descriptions(function.__doc__ or "", options)
        return call
    return decorate


def _with_descriptions(text: str, options: Any) -> str:
    """A docstring, whose section of arguments goes on with those of a class of options and its bases."""
    described = [inspect.cleandoc(base.__doc__ or "") for base in reversed(options.__mro__[:-1])]
    sections = [match[1].rstrip() for doc in described
                if (match := re.search(r"^Attributes:\n((?:    .*\n?|\n)*)", doc, re.MULTILINE))]
    return re.sub(r"^(Args:\n(?:    .*\n)*)", lambda match: match[1] + "\n".join(sections) + "\n",
                  inspect.cleandoc(text), flags=re.MULTILINE)


def check_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *,
                    title: str | None = None) -> None:
    """Check the arguments of a call of a function or a class by its annotations.

    Missing and unknown arguments are not checked: Python reports them when the function is called.

    Args:
        title: the name in errors; default: that of the function.
    """
    if not args and not kwargs:
        return
    rules, title = _rules(function), title or function.__name__
    for name, value in (*zip(rules.positional, args, strict=False), *kwargs.items()):
        rule = rules.by_name.get(name)
        if rule is not None and not rule.accepts(value):
            raise InputError(f"{title}({name}={quote(value)}) must be {expected_values(rule, value)}")
        if rule is not None and rule.interval is not None:
            check_range(title, rule.interval, **{name: value})


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of a function's or a class's parameters, and of what it returns.

    Raises:
        NameError: an annotation names a type that only type checkers import.
    """
    if not inspect.isclass(function):
        return get_type_hints(function)
    return get_type_hints(function) | get_type_hints(function.__init__) | {"return": function}


class Rule(NamedTuple):
    """What an annotation allows.

    Attributes:
        accepts: whether a value is allowed.
        expected: the allowed values in words.
        choices: the allowed words, if only some are allowed.
        interval: where numbers must lie; None: anywhere.
    """

    accepts: Callable[[Any], bool]
    expected: str
    choices: tuple[str, ...] = ()
    interval: Interval | None = None


class _Rules(NamedTuple):
    """The rules of a function's parameters.

    Attributes:
        positional: the names of the parameters that can be passed by position, in order.
        by_name: the rule of each parameter with an annotation.
    """

    positional: tuple[str, ...]
    by_name: dict[str, Rule]


@functools.cache
def rule_of(hint: Any) -> Rule:
    """The rule of an annotation for values that are not traced; what is not known is allowed."""
    return _rule(hint, is_static=True)


@functools.cache
def _rules(function: Callable[..., Any]) -> _Rules:
    parameters = inspect.signature(function).parameters.values()
    positional = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    try:
        hints, intervals = hints_of(function), _intervals(function)
    except NameError:  # a type that only type checkers import
        return _Rules(positional, {})
    static = _static_fields(function)
    by_name = {p.name: _rule(hints[p.name], is_static=p.name in static)._replace(interval=intervals.get(p.name))
               for p in parameters if p.name in hints and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if hints.get("seed") is int:  # NumPy's generators have no negative seeds
        by_name["seed"] = Rule(lambda value: _is_integer(value, is_static=False) and (
            isinstance(value, jax.core.Tracer) or value >= 0), "an integer of at least 0")
    return _Rules(positional, by_name)


def _intervals(function: Callable[..., Any]) -> dict[str, Interval]:
    """The annotated interval of each parameter that has one.

    A class has them in its fields too, because a field with a converter has the converter's type in ``__init__``.
    """
    return {name: extra for part in ((function.__init__, function) if inspect.isclass(function) else (function,))
            for name, hint in get_type_hints(part, include_extras=True).items() if get_origin(hint) is Annotated
            for extra in hint.__metadata__ if extra in get_args(Interval)}


def _static_fields(function: Callable[..., Any]) -> frozenset[str]:
    """The fields of an Equinox module that are compiled into programs as they are, or all of another dataclass.

    A field with a converter accepts what is converted, such as a list for a tuple.
    """
    if not inspect.isclass(function) or not dataclasses.is_dataclass(function):
        return frozenset()
    is_pytree = hasattr(function, "__check_init__") or any(b.__module__.startswith("equinox") for b in function.__mro__)
    return frozenset(f.name for f in dataclasses.fields(function)
                     if not is_pytree or (f.metadata.get("static") and "converter" not in f.metadata))


def _rule(hint: Any, *, is_static: bool) -> Rule:
    """The rule of an annotation; what is not known is allowed."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union_rule(arguments, is_static=is_static)
    if origin is Literal:
        return Rule(lambda value: isinstance(value, str | int | None) and value in arguments,
                     _either(repr(value) for value in arguments), tuple(map(str, arguments)))
    if origin in (list, tuple, collections.abc.Sequence):
        return _sequence_rule(origin, arguments, is_static=is_static)
    if origin is dict:
        key, item = (_rule(argument, is_static=is_static) for argument in arguments)
        return Rule(lambda value: isinstance(value, dict) and all(
                         key.accepts(k) and item.accepts(v) for k, v in value.items()),
                     f"a dictionary whose keys are {key.expected} and whose values are {item.expected}")
    if origin is collections.abc.Callable:
        return Rule(callable, "a function")
    return _class_rule(hint if origin is None else origin, is_static=is_static)


def _union_rule(members: tuple[Any, ...], *, is_static: bool) -> Rule:
    rules = []
    if frozenset(members) >= _ARRAY_LIKE:
        rules = [Rule(functools.partial(_is_array_like, is_static=is_static), "a finite number")]
        members = tuple(m for m in members if m not in _ARRAY_LIKE)
    rules += [_rule(member, is_static=is_static) for member in members]
    return Rule(lambda value: any(rule.accepts(value) for rule in rules),
                 _either(dict.fromkeys(rule.expected for rule in rules)),
                 tuple(choice for rule in rules for choice in rule.choices))


def _sequence_rule(kind: type, items: tuple[Any, ...], *, is_static: bool) -> Rule:
    """Lists and tuples with items of one type; a compiled program needs tuples, because they can be hashed."""
    if len([item for item in items if item is not Ellipsis]) != 1:
        return _anything()
    item = _rule(items[0], is_static=is_static)
    kinds: tuple[type, ...] = (tuple,) if is_static and kind is tuple else (list, tuple)
    return Rule(lambda value: isinstance(value, list | tuple) and isinstance(value, kinds)
                 and all(item.accepts(v) for v in value),
                 f"{'a list' if list in kinds else 'a tuple'} whose items are {item.expected}", item.choices)


def _class_rule(kind: Any, *, is_static: bool) -> Rule:
    if not inspect.isclass(kind) or kind.__module__ == "typing" or getattr(kind, "_is_protocol", False):
        return _anything()
    if kind is type(None):
        return Rule(lambda value: value is None, "None")
    if kind is bool:
        return Rule(lambda value: isinstance(value, bool | np.bool_), "True or False")
    if kind is int:
        return Rule(lambda value: _is_integer(value, is_static=is_static), "an integer")
    if kind is float:
        return Rule(lambda value: _is_number(value, is_static=is_static), "a finite number")
    if issubclass(kind, AbstractArray) or kind is jax.Array:
        return Rule(_is_array, "an array of finite numbers")
    if kind.__module__.startswith("jaxtyping"):
        return _anything()
    if kind is str:
        return Rule(lambda value: isinstance(value, str | os.PathLike), "text")  # or the path of a file
    name = f"{_article(kind.__name__)} {kind.__name__}"
    return Rule(lambda value: isinstance(value, kind), f"{name}, such as {_EXAMPLES[kind.__name__]}"
                 if kind.__name__ in _EXAMPLES else name)


def _anything() -> Rule:
    return Rule(lambda value: True, "anything")


def _is_integer(value: Any, *, is_static: bool) -> bool:
    if isinstance(value, jax.core.Tracer):
        return not is_static
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and abs(int(value)) < _MAX_INTEGER


def _is_number(value: Any, *, is_static: bool) -> bool:
    if isinstance(value, jax.core.Tracer):
        return not is_static
    if isinstance(value, _ARRAYS):
        return not is_static and value.ndim == 0 and value.dtype != np.bool_ and _is_array(value)
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    if isinstance(value, int) and abs(value) >= _MAX_INTEGER:
        return False
    return abs(float(value)) <= _MAX_NUMBER  # false for NaN


def _is_array_like(value: Any, *, is_static: bool) -> bool:
    """Whether it is a number, or an array of them: a sweep has an array of weights, of which each run gets one."""
    if _is_number(value, is_static=is_static):
        return True
    return isinstance(value, _ARRAYS) and value.dtype != np.bool_ and _is_array(value)


def _is_array(value: Any) -> bool:
    """Whether it is an array of finite numbers, or is converted to one by JAX."""
    if isinstance(value, jax.core.Tracer) or (isinstance(value, jax.Array) and not value.is_fully_addressable):
        return True
    if isinstance(value, bool) or not isinstance(value, (*_ARRAYS, np.generic, int, float, list, tuple)):
        return False
    if jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.extended):
        return True  # random keys
    try:
        numbers = np.asarray(value)
    except (ValueError, TypeError, OverflowError):  # lists of different lengths
        return False
    if not (jnp.issubdtype(numbers.dtype, np.integer) or jnp.issubdtype(numbers.dtype, np.floating)):
        return numbers.dtype == np.bool_ and not isinstance(value, list | tuple)
    return bool((np.abs(numbers.astype(np.float64)) <= _MAX_NUMBER).all())  # false for NaN


def expected_values(rule: Rule, value: Any) -> str:
    """The allowed values in words, with the reason why this one is not allowed, if its text does not show it."""
    if isinstance(value, int) and abs(value) >= _MAX_INTEGER and ("integer" in rule.expected
                                                                  or "number" in rule.expected):
        is_float = "number" in rule.expected
        return f"{rule.expected}; integers must be smaller than 2^31{', floats such as 1e10 need not' * is_float}"
    words = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    unknown = [word for word in words if isinstance(word, str) and word not in rule.choices]
    if unknown and rule.choices:
        return f"{rule.expected}{nearest(unknown[0], rule.choices)}"
    if isinstance(value, int | float | str | None):
        return rule.expected
    if isinstance(value, jax.core.Tracer):
        return f"{rule.expected} that is not traced, because it is compiled into the program"
    if isinstance(value, list) and "a tuple" in rule.expected and "a list" not in rule.expected:
        return f"{rule.expected}, not a list: write (0, 1), or (0,) for a single item"
    if inspect.isclass(value) or inspect.isfunction(value):
        kind = "class" if inspect.isclass(value) else "function"
        # A function within a function, or a lambda, is rarely one that makes the part.
        advice = "" if "<" in value.__qualname__ else f": call it, {value.__name__}(...)"
        return f"{rule.expected}, not the {kind} {value.__name__}{advice}"
    return f"{rule.expected}, got {_article(type(value).__name__)} {type(value).__name__}"


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiouAEIOU" else "a"


def _either(texts: Iterable[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} or {last}" if first else last


def __dir__() -> list[str]:
    return __all__
