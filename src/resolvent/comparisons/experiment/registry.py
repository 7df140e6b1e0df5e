"""The parts that an experiment file can name, by kind.

Nothing is registered by hand. A part of a kind is what a namespace module lists in ``__all__`` and what is a concrete
subclass of the kind's base class, or a function that returns one. It must also be possible to write its required
arguments in a file: ``SGD`` is a part, ``from_flax`` is not.

In a file a part has its Python name. Capitals and underscores in the name of a class do not matter:
``geometric_median`` is ``GeometricMedian``.
"""

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

from resolvent.arguments import hints_of
from resolvent.comparisons.experiment.catalogue import modules
from resolvent.comparisons.experiment.file_types import file_type, members

_ALGORITHM = "resolvent.algorithms.algorithm.Algorithm"
_MODEL = "resolvent.problem.models.model.Model"


@dataclass(frozen=True)
class Registry:
    """The parts of one kind.

    Classes and modules are named, and imported when a file names a part of the kind: few commands need all of them.

    Attributes:
        kind_names: module and name of the base class of the parts, and of further base classes of parts that may be
            named in the same position.
        title: the kind's name in messages.
        plural: the kind's name in ``resolvent list``.
        namespaces: names of the modules whose ``__all__`` lists the parts.
        supplied: parameters that the experiment supplies. A file may set those that are components (an algorithm's own
            solver), but not plain values (a model's number of features, which the data determine).
        number: the part, and its argument, that a bare number in a file stands for.
        typical: the part that represents the kind in tables, for presets that have no default for it.
        adapter: module and name of what turns a function of the user's own into one that makes a part, if it is of
            another form.
    """

    kind_names: tuple[str, ...]
    title: str
    plural: str
    namespaces: tuple[str, ...]
    default: str | None = None
    supplied: frozenset[str] = frozenset()
    number: tuple[str, str] | None = None
    typical: str | None = None
    adapter: str | None = None

    @cached_property
    def kinds(self) -> tuple[type, ...]:
        """All base classes of the parts."""
        return tuple(map(_imported, self.kind_names))

    def adapt(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the user's own as one that makes a part."""
        adapted: Callable[..., Any] = function if self.adapter is None else _imported(self.adapter)(function)
        return adapted

    @cached_property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The parts by name, in the order of their definition."""
        made = {name: part for namespace in self.namespaces
                for name, part in _defined(import_module(namespace))
                if any(_makes(part, kind) for kind in self.kinds)}
        # Classes are abstract or final, so a class from which another one derives is a base.
        bases = {base for part in made.values() if inspect.isclass(part) for base in part.__mro__[1:]}
        return {name: part for name, part in made.items() if part not in bases and _fits_a_file(part, self)}

    def find(self, written: str) -> tuple[str, Callable[..., Any]] | None:
        """The Python name of the part that a file calls ``written``, and the part; None if there is none.

        Of a part in the catalogue only its own module is imported.
        """
        known = modules(self.plural)
        if (name := _spelled(written, known)) is not None:
            return name, getattr(import_module(known[name]), name)
        name = self.name_of(written)
        return None if name is None else (name, self.functions[name])

    def name_of(self, name: str) -> str | None:
        """The Python name of the part that a file calls ``name``, or None if there is no such part."""
        return _spelled(name, self.functions)


@dataclass(frozen=True)
class Component:
    """What an annotation says about a parameter that takes parts.

    Attributes:
        is_mapping: whether it is a mapping from labels to parts.
        is_optional: whether it may be None.
    """

    registry: Registry
    is_mapping: bool
    is_optional: bool


_REGISTRIES = (
    Registry(("resolvent.data.federated.FederatedData", "resolvent.problem.problem_data.ProblemData"), "data set",
             "data", ("resolvent.datasets",), default="table"),
    Registry((_MODEL, "resolvent.problem.problem_data.ProblemModel"), "model", "models",
             ("resolvent.models",),
             supplied=frozenset({"features", "classes", "targets", "task", "shape", "vocabulary"})),
    Registry(("resolvent.problem.problem.Problem",), "problem", "problems", ("resolvent.problem.problems",),
             default="least_squares"),
    Registry(("resolvent.comparisons.tuning.settings.Search",), "search", "searches",
             ("resolvent.comparisons.tuning.settings",), default="Search"),
    Registry(("resolvent.problem.metrics.metric.Metric",), "metric", "metrics", ("resolvent.metrics",),
             adapter="resolvent.problem.metrics.metric.settings_of"),
    Registry(("resolvent.data.partition.division.Partition",), "partition", "partitions",
             ("resolvent.data.partition.partitions",)),
    Registry(("resolvent.simulator.record.systems.VirtualClock",), "clock", "clocks",
             ("resolvent.simulator.record.systems",), default="VirtualClock"),
    Registry(("resolvent.differential_privacy.budget.PrivacyBudget",), "privacy budget", "privacy",
             ("resolvent.privacy",), default="PrivacyBudget"),
    Registry(("resolvent.comparisons.judgement.decision_rule.DecisionRule",), "decision rule", "decisions",
             ("resolvent.comparisons.judgement.decision_rule",), default="DecisionRule"),
    Registry(("resolvent.data.partition.shifts.Shift",), "shift", "shifts", ("resolvent.data.partition.shifts",)),
    Registry((_ALGORITHM,), "algorithm", "algorithms",
             ("resolvent.algorithms.presets", "resolvent.combinators"), supplied=frozenset({"solver"}),
             typical="fedavg"),
    Registry(("resolvent.problem.solvers.solver.LocalSolver",), "solver", "solvers", ("resolvent.solvers",)),
    Registry(("resolvent.problem.solvers.minibatches.Batches",), "rule for minibatches", "batches",
             ("resolvent.solvers",)),
    Registry(("resolvent.algorithms.participation.rules.Participation",), "participation", "participation",
             ("resolvent.participation",)),
    Registry(("resolvent.math.penalties.Penalty",), "penalty", "penalties", ("resolvent.math.penalties",),
             typical="L1"),
    Registry(("resolvent.algorithms.aggregators.aggregator.Aggregator",), "aggregator", "aggregators",
             ("resolvent.aggregators",), typical="Mean"),
    Registry(("resolvent.algorithms.attacks.Attack",), "attack", "attacks", ("resolvent.algorithms.attacks",),
             typical="SignFlip"),
    Registry(("resolvent.math.codecs.Codec",), "codec", "codecs", ("resolvent.math.codecs",), typical="RandK"),
    Registry(("resolvent.simulator.record.callbacks.Callback",), "callback", "callbacks",
             ("resolvent.simulator.record.callbacks",)),
    Registry(("resolvent.problem.schedules.Schedule",), "schedule", "schedules", ("resolvent.problem.schedules",),
             number=("Constant", "first")),
)
_BY_KIND = {name: registry for registry in _REGISTRIES for name in registry.kind_names}


def registries() -> tuple[Registry, ...]:
    """The parts of all kinds."""
    return _REGISTRIES


def registry_of(kind: type) -> Registry:
    """The parts of a base class."""
    return _BY_KIND[_path_of(kind)]


def component_of(hint: Any) -> Component | None:
    """The component that an annotation stands for: a kind, an optional one, or a mapping from labels to one."""
    parts = members(hint)
    is_optional = type(None) in parts
    parts = tuple(part for part in parts if part is not type(None))
    if any(_path_of(part) in _BY_KIND for part in parts):
        parts = tuple(part for part in parts if part is not float)  # a number stands for one of the parts
    is_mapping = len(parts) == 1 and get_origin(parts[0]) is dict
    found = {_BY_KIND.get(_path_of(part)) for part in ((get_args(parts[0])[1],) if is_mapping else parts)}
    registry = found.pop() if len(found) == 1 else None  # several base classes may be of one kind
    return None if registry is None else Component(registry, is_mapping, is_optional)


def _path_of(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}"


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _defined(namespace: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a module lists in ``__all__``, in the order of the definitions.

    Linters sort ``__all__`` by the alphabet; modules define the simplest part first.
    """
    parts = {name: getattr(namespace, name) for name in namespace.__all__}
    modules = list(dict.fromkeys(_module_of(part, namespace) for part in parts.values()))

    def position(name: str) -> tuple[int, int]:
        module = _module_of(parts[name], namespace)
        return modules.index(module), [*vars(sys.modules[module])].index(parts[name].__name__)

    yield from ((name, parts[name]) for name in sorted((n for n in parts if callable(parts[n])), key=position))


def _module_of(part: Any, namespace: ModuleType) -> str:
    return getattr(part, "__module__", None) or namespace.__name__


def _makes(part: Any, kind: type) -> bool:
    """Whether a class is a concrete subclass of a kind, or a function returns one."""
    if inspect.isclass(part):
        return issubclass(part, kind) and not inspect.isabstract(part)
    if not inspect.isfunction(part):
        return False
    try:
        made = get_type_hints(part).get("return")
    except NameError:
        return False
    return inspect.isclass(made) and issubclass(made, kind)


def _fits_a_file(part: Callable[..., Any], registry: Registry) -> bool:
    """Whether a file can hold every argument that has no default and that the experiment does not supply."""
    try:
        hints = hints_of(part)
    except NameError:
        return False
    def fits(hint: Any) -> bool:
        component = component_of(hint)
        # The arguments of a model follow from the experiment's own data, so that only models have a model in them.
        if component is None:
            return file_type(hint) is not None
        return _MODEL not in component.registry.kind_names or _MODEL in registry.kind_names

    return all(fits(hints.get(name, Any))
               for name, parameter in inspect.signature(part).parameters.items()
               if parameter.default is inspect.Parameter.empty and name not in registry.supplied)


def _spelled(written: str, names: Collection[str]) -> str | None:
    """The name that is written; of a class, which begins with a capital, in any spelling."""
    if written in names:
        return written
    return next((name for name in names if name[0].isupper() and _plain(name) == _plain(written)), None)


def _plain(name: str) -> str:
    return name.replace("_", "").casefold()
