"""The parts that an experiment file can name, by kind.

Nothing is registered by hand. A part of a kind is what a namespace module lists in ``__all__`` and what is a concrete
subclass of the kind's base class, or a function that returns one. It must also be possible to write its required
arguments in a file: ``SGD`` is a part, ``from_flax`` is not.

In a file a part has its Python name. Capitals and underscores in the name of a class do not matter:
``geometric_median`` is ``GeometricMedian``.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

from resolvent import differential_privacy as privacy
from resolvent.algorithms import aggregators, attacks, combinators, participation, presets
from resolvent.algorithms.aggregators import Aggregator
from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.attacks import Attack
from resolvent.algorithms.participation import Participation
from resolvent.arguments import hints_of
from resolvent.comparisons.experiment.file_types import file_type, members
from resolvent.comparisons.judgement import decision_rule
from resolvent.comparisons.judgement.decision_rule import DecisionRule
from resolvent.comparisons.tuning import settings as search_settings
from resolvent.comparisons.tuning.settings import Search
from resolvent.data import datasets
from resolvent.data.federated import FederatedData
from resolvent.data.partition import partitions, shifts
from resolvent.data.partition.partitions import Partition
from resolvent.data.partition.shifts import Shift
from resolvent.differential_privacy import PrivacyBudget
from resolvent.math import codecs, penalties
from resolvent.math.codecs import Codec
from resolvent.math.penalties import Penalty
from resolvent.problem import metrics, models, problems, schedules, solvers
from resolvent.problem.metrics.metric import Metric, settings_of
from resolvent.problem.models import Model
from resolvent.problem.problem import Problem
from resolvent.problem.problem_data import ProblemData, ProblemModel
from resolvent.problem.schedules import Schedule
from resolvent.problem.solvers import Batches, LocalSolver
from resolvent.simulator.record import callbacks, systems
from resolvent.simulator.record.callbacks import Callback
from resolvent.simulator.record.systems import VirtualClock
from resolvent.tables import party_tables
from resolvent.torch import torch_models


@dataclass(frozen=True)
class Registry:
    """The parts of one kind.

    Attributes:
        kind: the base class of the parts.
        others: further base classes of parts that may be named in the same position.
        title: the kind's name in messages.
        plural: the kind's name in ``resolvent list``.
        namespaces: the modules whose ``__all__`` lists the parts.
        supplied: parameters that the experiment supplies. A file may set those that are components (an algorithm's own
            solver), but not plain values (a model's number of features, which the data determine).
        number: the part, and its argument, that a bare number in a file stands for.
        typical: the part that represents the kind in tables, for presets that have no default for it.
        adapt: turns a function of the user's own into one that makes a part, if it is of another form.
    """

    kind: type
    title: str
    plural: str
    namespaces: tuple[ModuleType, ...]
    default: str | None = None
    supplied: frozenset[str] = frozenset()
    number: tuple[str, str] | None = None
    typical: str | None = None
    others: tuple[type, ...] = ()
    adapt: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None

    @property
    def kinds(self) -> tuple[type, ...]:
        """All base classes of the parts."""
        return (self.kind, *self.others)

    @cached_property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The parts by name, in the order of their definition."""
        made = {name: part for namespace in self.namespaces for name, part in _defined(namespace)
                if any(_makes(part, kind) for kind in self.kinds)}
        # Classes are abstract or final, so a class from which another one derives is a base.
        bases = {base for part in made.values() if inspect.isclass(part) for base in part.__mro__[1:]}
        return {name: part for name, part in made.items() if part not in bases and _fits_a_file(part, self)}

    def name_of(self, name: str) -> str | None:
        """The Python name of the part that a file calls ``name``, or None if there is no such part."""
        if name in self.functions:
            return name
        classes = (candidate for candidate, part in self.functions.items() if inspect.isclass(part))
        return next((candidate for candidate in classes if _plain(candidate) == _plain(name)), None)


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
    Registry(FederatedData, "data set", "data", (datasets, party_tables), default="table", others=(ProblemData,)),
    Registry(Model, "model", "models", (models, torch_models), others=(ProblemModel,),
             supplied=frozenset({"features", "classes", "targets", "task", "shape", "vocabulary"})),
    Registry(Problem, "problem", "problems", (problems,), default="least_squares"),
    Registry(Search, "search", "searches", (search_settings,), default="Search"),
    Registry(Metric, "metric", "metrics", (metrics,), adapt=settings_of),
    Registry(Partition, "partition", "partitions", (partitions,)),
    Registry(VirtualClock, "clock", "clocks", (systems,), default="VirtualClock"),
    Registry(PrivacyBudget, "privacy budget", "privacy", (privacy,), default="PrivacyBudget"),
    Registry(DecisionRule, "decision rule", "decisions", (decision_rule,), default="DecisionRule"),
    Registry(Shift, "shift", "shifts", (shifts,)),
    Registry(Algorithm, "algorithm", "algorithms", (presets, combinators), supplied=frozenset({"solver"}),
             typical="fedavg"),
    Registry(LocalSolver, "solver", "solvers", (solvers,)),
    Registry(Batches, "rule for minibatches", "batches", (solvers,)),
    Registry(Participation, "participation", "participation", (participation,)),
    Registry(Penalty, "penalty", "penalties", (penalties,), typical="L1"),
    Registry(Aggregator, "aggregator", "aggregators", (aggregators,), typical="Mean"),
    Registry(Attack, "attack", "attacks", (attacks,), typical="SignFlip"),
    Registry(Codec, "codec", "codecs", (codecs,), typical="RandK"),
    Registry(Callback, "callback", "callbacks", (callbacks,)),
    Registry(Schedule, "schedule", "schedules", (schedules,), number=("Constant", "first")),
)


@cache
def registries() -> dict[type, Registry]:
    """The parts by base class."""
    return {kind: registry for registry in _REGISTRIES for kind in registry.kinds}


def listings() -> dict[str, dict[str, Callable[..., Any]]]:
    """All parts by kind. Combinators are a kind of their own here, after the presets."""
    kinds: dict[str, dict[str, Callable[..., Any]]] = {}
    for registry in registries().values():
        kinds[registry.plural] = dict(registry.functions)
        if registry.kind is Algorithm:
            kinds["algorithms"] = {name: f for name, f in registry.functions.items() if not inspect.isclass(f)}
            kinds["combinators"] = {name: f for name, f in registry.functions.items() if inspect.isclass(f)}
    return kinds


def component_of(hint: Any) -> Component | None:
    """The component that an annotation stands for: a kind, an optional one, or a mapping from labels to one."""
    parts, known = members(hint), registries()
    is_optional = type(None) in parts
    parts = tuple(part for part in parts if part is not type(None))
    if any(part in known for part in parts):
        parts = tuple(part for part in parts if part is not float)  # a number stands for one of the parts
    if all(part in known for part in parts) and len({known[part].kind for part in parts}) == 1:
        parts = parts[:1]  # several base classes of one kind
    if len(parts) != 1:
        return None
    (part,) = parts
    if part in known:
        return Component(known[part], False, is_optional)
    if get_origin(part) is dict and get_args(part)[1] in known:
        return Component(known[get_args(part)[1]], True, is_optional)
    return None


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
        return component.registry.kind is not Model or registry.kind is Model

    return all(fits(hints.get(name, Any))
               for name, parameter in inspect.signature(part).parameters.items()
               if parameter.default is inspect.Parameter.empty and name not in registry.supplied)


def _plain(name: str) -> str:
    return name.replace("_", "").casefold()
