"""Functions configured by mappings: names, types, defaults, help and validation all come from the functions.

A *component* is a mapping with a ``name`` that picks a function from a registry, and that function's arguments beside
it. Which registry follows from the annotated type of the parameter that the component is for, so an experiment file is
declared nowhere but in the signatures and docstrings of the functions that it configures.
"""

import inspect
import json
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
import pydantic
from jaxtyping import ArrayLike

from resolvent.algorithms import attacks, participation, presets, schedules
from resolvent.algorithms.aggregators import aggregator as aggregators
from resolvent.algorithms.aggregators import robust
from resolvent.algorithms.aggregators.aggregator import Aggregator
from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.attacks import Attack
from resolvent.algorithms.combinators.anderson import Anderson
from resolvent.algorithms.combinators.attacked import Attacked
from resolvent.algorithms.combinators.compressed import Compressed
from resolvent.algorithms.combinators.decentralised_anderson import DecentralisedAnderson
from resolvent.algorithms.combinators.ergodic import ErgodicAveraging
from resolvent.algorithms.combinators.explicit_mixture import ExplicitMixture
from resolvent.algorithms.combinators.fine_tuned import FineTuned
from resolvent.algorithms.combinators.stale_replies import StaleReplies
from resolvent.algorithms.participation import Participation
from resolvent.algorithms.schedules import Schedule
from resolvent.data import datasets, partitions, shifts
from resolvent.data.federated import FederatedData
from resolvent.data.partitions import Partition
from resolvent.data.shifts import Shift
from resolvent.errors import InputError, nearest
from resolvent.math import codecs
from resolvent.math import penalties as prox
from resolvent.math.codecs import Codec
from resolvent.math.penalties import Penalty
from resolvent.problem import instances, models
from resolvent.problem.models import networks
from resolvent.problem.models.model import Model
from resolvent.problem.problem import SolvedProblem
from resolvent.problem import solvers as optimizers
from resolvent.problem.solvers import solver as solvers
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.simulate.systems import VirtualClock

__all__ = ["REGISTRIES", "Bound", "Registry", "bind", "first_line", "help_of", "listings"]


@dataclass(frozen=True)
class Registry:
    """The functions that make things of one type.

    Attributes:
        title: what one of these things is called.
        plural: and several, which is what ``resolvent list`` calls them.
        functions: by the name that a file uses.
        default: the name that is meant where none is given.
        given: parameters that the experiment supplies: a component may be set in the file all the same (an algorithm's
            own solver), a plain value may not (a model's number of features comes from the data).
        number: what a bare number stands for: a name and the argument that the number is.
    """

    title: str
    plural: str
    functions: Mapping[str, Callable[..., Any]]
    default: str | None = None
    given: frozenset[str] = frozenset()
    number: tuple[str, str] | None = None


def _named(module: types.ModuleType, *names: str) -> dict[str, Callable[..., Any]]:
    return {name: getattr(module, name) for name in names}


COMBINATORS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (Anderson, Attacked, ErgodicAveraging, Compressed, DecentralisedAnderson, FineTuned, ExplicitMixture,
                            StaleReplies)}

REGISTRIES: dict[type, Registry] = {
    FederatedData: Registry("data set", "data", _named(datasets, *(n for n in datasets.__all__ if n != "from_frame")),
                            default="table"),
    Model: Registry("model", "models", _named(models, "linear", "logistic", "mlp") | _named(
                        networks, "mnist_cnn", "cifar_cnn", "char_lstm", "sentiment_lstm"),
                    given=frozenset({"features", "classes", "task", "shape", "vocabulary"})),
    SolvedProblem: Registry("problem", "problems", _named(
                                instances, "least_squares", "logistic_regression", "logistic_data"),
                      default="least_squares"),
    Partition: Registry("partition", "partitions", {
        "iid": partitions.IID, "power_law": partitions.PowerLaw, "shards": partitions.Shards,
        "dirichlet": partitions.Dirichlet, "by_user": partitions.ByUser, "quantity_skew": partitions.QuantitySkew}),
    VirtualClock: Registry("clock", "clocks", {"lognormal": VirtualClock}, default="lognormal"),
    Shift: Registry("shift", "shifts", {"negative": shifts.Negative, "laplace_noise": shifts.LaplaceNoise}),
    Algorithm: Registry("algorithm", "algorithms", _named(presets, *presets.__all__) | COMBINATORS,
                        given=frozenset({"solver"})),
    LocalSolver: Registry("solver", "solvers", _named(solvers, "SGD", "GD", "ClosedForm") | _named(
        optimizers, "momentum", "adam", "LBFGS")),
    Participation: Registry("participation", "participation", {
        "full": participation.Full, "uniform": participation.Uniform, "by_size": participation.BySize,
        "bernoulli": participation.Bernoulli, "stragglers": participation.Stragglers,
        "fixed_effort": participation.FixedEffort, "dropout": participation.Dropout}),
    Penalty: Registry("penalty", "penalties", _named(prox, "L1", "L2Norm", "SquaredL2", "Zero", "OriginIndicator", "Scaled",
                                                     "PerLayer")),
    Aggregator: Registry("aggregator", "aggregators", {
        "mean": aggregators.Mean, "moreau_centre": aggregators.MoreauCentre,
        "geometric_median": aggregators.GeometricMedian, "coordinate_median": aggregators.CoordinateMedian,
        "trimmed_mean": robust.TrimmedMean, "krum": robust.Krum, "multi_krum": robust.MultiKrum,
        "bulyan": robust.Bulyan, "centred_clipping": robust.CentredClipping, "norm_bound": robust.NormBound}),
    Attack: Registry("attack", "attacks", {
        "sign_flip": attacks.SignFlip, "scaled": attacks.Scaled, "gaussian": attacks.Gaussian, "alie": attacks.ALIE,
        "ipm": attacks.IPM, "label_flip": attacks.LabelFlip, "nan": attacks.NaN}),
    Codec: Registry("codec", "codecs", _named(codecs, "Identity", "RandK", "TopK", "NaturalCompression", "QSGD")),
    Schedule: Registry("schedule", "schedules", {
        "constant": schedules.Constant, "inverse_power": schedules.InversePower, "inverse_log": schedules.InverseLog,
        "exponential": schedules.Exponential}, number=("constant", "first")),
}


def listings() -> dict[str, dict[str, Callable[..., Any]]]:
    """Everything that a file can name, by kind; combinators apart from the algorithms that they go around."""
    kinds = {registry.plural: dict(registry.functions) for registry in REGISTRIES.values()}
    kinds["algorithms"] = {name: f for name, f in kinds["algorithms"].items() if name not in COMBINATORS}
    at = [*kinds].index("algorithms") + 1
    return dict([*kinds.items()][:at]) | {"combinators": dict(COMBINATORS)} | dict([*kinds.items()][at:])


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function: a plain value, a component, or a mapping of components."""

    name: str
    type: Any
    default: Any
    help: str
    registry: Registry | None
    many: bool
    optional: bool


@dataclass(frozen=True)
class Bound:
    """A function with validated arguments, not yet called.

    Attributes:
        function: the function.
        name: the name that the file uses, or None for a fixed function.
        values: its plain arguments, every default filled in.
        parts: its components, by parameter; mappings of components by parameter and key.
        where: the path in the file, for errors.
    """

    function: Callable[..., Any]
    name: str | None
    values: Mapping[str, Any]
    parts: Mapping[str, "Bound | dict[str, Bound]"]
    where: str

    def settings(self) -> dict[str, Any]:
        """As the file would say it, with every default filled in."""
        named: dict[str, Any] = {} if self.name is None else {"name": self.name}
        parts = {key: {k: p.settings() for k, p in part.items()} if isinstance(part, dict) else part.settings()
                 for key, part in self.parts.items()}
        order = [p for p in parameters(self.function) if p in self.values or p in parts]
        return named | {p: parts[p] if p in parts else _plain(self.values[p]) for p in order}

    def build(self, **given: Any) -> Any:
        """Call the function; ``given`` supplies what the file leaves to the experiment, to the parts as well.

        Raises:
            InputError: the function refuses its arguments; the message starts with the path in the file.
        """
        arguments = dict(self.values)
        for key, part in self.parts.items():
            arguments[key] = ({k: p.build(**given) for k, p in part.items()} if isinstance(part, dict)
                              else part.build(**given))
        known = parameters(self.function)
        arguments |= {key: value for key, value in given.items() if key in known and key not in arguments}
        try:
            return self.function(**arguments)
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, InputError) and not self.where:
                raise
            message = error.args[0] if error.args else str(error)
            raise InputError(f"{self.where or self.name}: {message}") from error


def bind(function: Callable[..., Any], settings: Any, *, where: str = "", name: str | None = None,
         given: frozenset[str] = frozenset()) -> Bound:
    """Check settings against a function's signature and fill in every default.

    Args:
        function: what the settings are the arguments of.
        settings: a mapping, as read from a file.
        where: the path in the file, for errors.
        name: the name that picked the function.
        given: parameters that need not be set because the experiment supplies them.

    Raises:
        InputError: an unknown key, a missing one, or a value of the wrong type; the message has the path, what is
            allowed, and the nearest match.
    """
    if not isinstance(settings, Mapping):
        raise InputError(f"{where or 'the experiment'}: expected a mapping of settings, got {settings!r}")
    known = parameters(function)
    supplied = {key for key in given if key in known and known[key].registry is None}
    allowed = [*(() if name is None else ("name",)), *(key for key in known if key not in supplied)]
    for key in settings:
        if key in supplied:
            raise InputError(f"{_join(where, key)}: the experiment supplies it; leave it out")
        if key not in known:
            raise InputError(f"{_join(where, key)}: unknown key; allowed here: {', '.join(allowed)}"
                             f"{nearest(str(key), allowed)}")
    parts: dict[str, Bound | dict[str, Bound]] = {}
    plain: dict[str, Any] = {}
    for key, p in known.items():
        if key in supplied:
            continue
        if p.registry is None:
            if key in settings:
                plain[key] = settings[key]
        elif settings.get(key) is not None or (key in settings and not p.optional):
            parts[key] = _bind_parts(p, settings[key], _join(where, key))
        elif not p.many and p.default is not None and p.default is not inspect.Parameter.empty:
            named = p.default if _is_number(p.default) else {"name": _name_of(p.registry, p.default)}
            parts[key] = _bind_parts(p, named, _join(where, key))
        if key not in settings and key not in given and p.default is inspect.Parameter.empty:
            raise InputError(f"{_join(where, key)}: missing; {p.help or 'it has no default'}")
    values = _validate(function, plain, where, frozenset(supplied))
    absent = {key: None for key, p in known.items() if p.registry and p.optional and key not in parts}
    return Bound(function, name, values | absent, parts, where)


def _bind_parts(p: Parameter, settings: Any, where: str) -> "Bound | dict[str, Bound]":
    assert p.registry is not None
    if not p.many:
        default = _name_of(p.registry, p.default)
        return _bind_component(p.registry, settings, where, default)
    if not isinstance(settings, Mapping) or not settings:
        raise InputError(f"{where}: expected a mapping from labels to {p.registry.plural}, at least one, "
                         f"got {settings!r}")
    return {str(key): _bind_component(p.registry, part, _join(where, key)) for key, part in settings.items()}


def _bind_component(registry: Registry, settings: Any, where: str, default: str | None = None) -> Bound:
    if isinstance(settings, str):
        settings = {"name": settings}
    elif registry.number and _is_number(settings):
        settings = {"name": registry.number[0], registry.number[1]: settings}
    if not isinstance(settings, Mapping):
        raise InputError(f"{where}: expected the name of a {registry.title} or a mapping with its name, "
                         f"got {settings!r}")
    name = settings.get("name", default or registry.default)
    if name is None:
        raise InputError(f"{_join(where, 'name')}: missing; say which {registry.title}: "
                         f"{', '.join(registry.functions)}")
    if not isinstance(name, str) or name not in registry.functions:
        raise InputError(f"{_join(where, 'name')}: there is no {registry.title} {name!r}; allowed: "
                         f"{', '.join(registry.functions)}{nearest(str(name), registry.functions)}")
    arguments = {key: value for key, value in settings.items() if key != "name"}
    return bind(registry.functions[name], arguments, where=where, name=name, given=registry.given)


def _validate(function: Callable[..., Any], plain: dict[str, Any], where: str, given: frozenset[str]) -> dict[str, Any]:
    """The plain arguments, converted to their annotated types, with defaults."""
    known = {key: p for key, p in parameters(function).items() if p.registry is None and key not in given}
    fields: dict[str, Any] = {
        key: (p.type, ... if p.default is inspect.Parameter.empty else p.default) for key, p in known.items()}
    rules = pydantic.ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False, validate_default=True)
    schema = pydantic.create_model("settings", __config__=rules, **fields)
    for key, value in plain.items():
        _check_text(value, _join(where, key))
    try:
        # JSON mode: strict about types, but lists may become tuples.
        checked = schema.model_validate_json(json.dumps(plain), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key, *inner = str(first["loc"][0]), *first["loc"][1:]
        got = plain[key]
        items = [i for i in inner if isinstance(i, int)]
        for i in items:
            got = got[i]
        allowed = _choices(known[key].type)
        hint = f"; allowed: {', '.join(allowed)}{nearest(str(got), allowed)}" if allowed else ""
        expected = "" if allowed else f" ({first['msg'][0].lower()}{first['msg'][1:]})"
        raise InputError(f"{_join(where, key, *items)}: {got!r} is not a valid value{expected}{hint}") from error
    return {key: getattr(checked, key) for key in known}


def _check_text(value: Any, where: str) -> None:
    """Refuse what YAML knows and JSON does not: dates above all."""
    def refuse(one: Any) -> Any:
        raise InputError(f"{where}: {one!s} is a {type(one).__name__} here; put text in quotes")

    try:
        json.dumps(value, default=refuse)
    except TypeError as error:
        raise InputError(f"{where}: {error}; put text in quotes") from error


@cache
def parameters(function: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters of a function or class, with types, defaults, help and the registries of components."""
    hints = get_type_hints(function.__init__ if inspect.isclass(function) else function)
    if inspect.isclass(function):
        hints = get_type_hints(function) | {k: v for k, v in hints.items() if k != "return"}
    helps = help_of(function)
    found = {}
    for name, p in inspect.signature(function).parameters.items():
        kind, many, optional = _component_type(hints.get(name, Any))
        found[name] = Parameter(name, _file_type(hints.get(name, Any)), p.default, helps.get(name, ""),
                                REGISTRIES.get(kind) if kind else None, many, optional)
    return found


@cache
def help_of(function: Callable[..., Any]) -> dict[str, str]:
    """The description of each parameter, from the docstring's Args or Attributes, or from those of a class's bases."""
    own, *bases = (_described(c) for c in getattr(function, "__mro__", (function,)))
    inherited = {name: text for base in reversed(bases) for name, text in base.items()}
    return {name: text for name, text in inherited.items() if name in inspect.signature(function).parameters} | own


def _described(function: Callable[..., Any]) -> dict[str, str]:
    parsed = docstring_parser.parse(inspect.cleandoc(function.__doc__ or ""))
    return {p.arg_name: " ".join((p.description or "").replace("``", "").split()) for p in parsed.params}


def first_line(function: Callable[..., Any]) -> str:
    """The first line of a function's docstring."""
    return (inspect.getdoc(function) or "").split("\n")[0].replace("``", "")


def _component_type(hint: Any) -> tuple[type | None, bool, bool]:
    """The component type of an annotation, whether it is a mapping of them, and whether it may be None."""
    optional = False
    if get_origin(hint) in (Union, types.UnionType):
        rest = [a for a in get_args(hint) if a is not type(None)]
        optional = len(rest) < len(get_args(hint))
        rest = [a for a in rest if a is not float] if REGISTRIES.keys() & set(rest) else rest
        hint = rest[0] if len(rest) == 1 else hint
    if hint in REGISTRIES:
        return hint, False, optional
    if get_origin(hint) is dict and get_args(hint)[1] in REGISTRIES:
        return get_args(hint)[1], True, optional
    return None, False, optional


_ARRAY_LIKE = frozenset(get_args(ArrayLike))


def _file_type(hint: Any) -> Any:
    """The annotation as a file can hold it: numbers for array-likes, lists of numbers for arrays."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    result: list[Any] = []
    if set(members) >= _ARRAY_LIKE:
        members = (float, *(m for m in members if m not in _ARRAY_LIKE))
    for member in members:
        is_array = inspect.isclass(member) and hasattr(member, "array_type")
        result.append(list[float] if is_array else member)
    return Union[tuple(result)] if len(result) > 1 else result[0]  # noqa: UP007 - built at run time


def _choices(hint: Any) -> list[str]:
    """The values that a Literal allows; nothing for other types."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    inner = [get_args(m)[0] if get_origin(m) in (list, tuple) else m for m in members]
    return [str(v) for m in inner if get_origin(m) is Literal for v in get_args(m)]


def _name_of(registry: Registry, default: Any) -> str | None:
    """The name of a parameter's default, or None where it has none."""
    return next((name for name, f in registry.functions.items() if inspect.isclass(f) and type(default) is f), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _join(where: str, *keys: Any) -> str:
    return ".".join(str(k) for k in (where, *keys) if k != "")
