"""Experiments: one small file that says what to compare, on what, and how."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation import Full, Participation
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, nearest
from resolvent.problem.models.model import Model
from resolvent.problem.problem import SolvedProblem
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.simulate.measure import Diagnostic
from resolvent.simulate.run import check_held_out
from resolvent.simulate.systems import VirtualClock
from resolvent.study.components import REGISTRIES, Bound, bind, parameters

__all__ = ["Experiment", "ExperimentFile", "experiments", "slug"]


Precision = Literal["float32", "float64"]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A comparison of algorithms on one federation in one common random world.

    Attributes:
        data: the parties' samples: a data set's name and its settings, or a table of your own.
        model: what every party trains.
        solver: how a party trains, unless an algorithm has a solver of its own.
        algorithms: what to compare: a label of your choice for each.
        problem: in place of data and model, objectives whose optimum is known; the methods are then compared by their
            optimality gap.
        participation: who takes part in a round, with what weight, and who is slow.
        rounds: how many rounds.
        seed: of everything random outside the data: first model, cohorts, stragglers, minibatches.
        evaluate_every: rounds between evaluations; left out, 20 evaluations in all, of small cohorts fewer.
        diagnostics: what to measure beside the scores.
        precision: float32, or float64 where a gap far below 1e-6 is to be seen.
        title: the report's heading.
        clock: measure the seconds and bytes of each round by a virtual clock.
    """

    data: FederatedData | None = None
    model: Model | None = None
    solver: LocalSolver
    algorithms: dict[str, Algorithm]
    problem: SolvedProblem | None = None
    participation: Participation = Full()  # noqa: RUF009 - a frozen module
    rounds: int = 100
    seed: int = 0
    evaluate_every: int | None = None
    diagnostics: tuple[Diagnostic, ...] = ("model_change", "line")
    precision: Precision = "float32"
    title: str = ""
    clock: VirtualClock | None = None

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties' names."""
        if self.data is not None:
            return tuple(self.data.parties)
        assert self.problem is not None
        return tuple(f"party {k}" for k in range(self.problem.parties))


@dataclass(frozen=True)
class ExperimentFile:
    """An experiment as checked settings, from which its parts can be built.

    Attributes:
        name: what the run folder is called after.
        bound: the settings.
        place: where the file says a key, for errors (``mine.yaml:7``).
    """

    name: str
    bound: Bound
    place: Callable[[str], str]

    @classmethod
    def load(cls, what: str, changes: Sequence[str] = ()) -> "ExperimentFile":
        """Read a shipped experiment by name, or a YAML file by path, and apply ``key.path=value`` changes.

        Raises:
            InputError: there is no such file, or it is wrong: the message has file, line, key and what is allowed.
        """
        path = Path(what)
        if path.suffix in (".yaml", ".yml"):
            if not path.is_file():
                raise InputError(f"there is no file {what}")
            try:
                source, text, name = what, path.read_text(encoding="utf-8"), path.stem
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{what} cannot be read: {error}") from error
        else:
            shipped = experiments()
            if what not in shipped:
                raise InputError(f"there is no experiment {what!r}; there are {', '.join(shipped)}, or give a file "
                                 f"that ends in .yaml{nearest(what, shipped)}")
            source, text, name = f"{what}.yaml", shipped[what], what
        return cls.parse(text, source, name, changes)

    @classmethod
    def parse(cls, text: str, source: str, name: str, changes: Sequence[str] = ()) -> "ExperimentFile":
        """Check the text of an experiment; ``source`` is what errors call its file.

        Raises:
            InputError: it is wrong: the message has source, line, key and what is allowed.
        """
        try:
            settings = YAML().load(text)
        except YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f":{mark.line + 1}" if mark else ""
            raise InputError(f"{source}{line}: not YAML: {getattr(error, 'problem', error)}") from error
        if not isinstance(settings, Mapping):
            raise InputError(f"{source}: expected a mapping with keys {', '.join(parameters(Experiment))}")
        # A new name drops the old component's settings, so it goes before the new one's.
        changed = {_change(settings, change): change for change in sorted(changes, key=lambda c: not _names(c))}

        def place(key: str) -> str:
            for path, change in changed.items():
                if _within(key, path):
                    return f"--set {change}"
            related = [change for path, change in changed.items()
                       if _within(path, key) or (_names(change) and _within(key, path.removesuffix(".name")))]
            return f"{source}{_line_of(settings, key)}" + (f" with --set {' '.join(related)}" if related else "")

        with _naming(place):
            bound = bind(Experiment, settings)
            _check(bound)
            return cls(name, bound, place)

    def build(self) -> Experiment:
        """Load the data and build the model and the algorithms.

        Raises:
            InputError: the data cannot be loaded, or a part refuses its settings.
        """
        with _naming(self.place), self.precision():
            return self._build()

    def precision(self) -> contextlib.AbstractContextManager[None]:
        """Everything that is made or run within is of the experiment's precision."""
        context: contextlib.AbstractContextManager[None] = jax.enable_x64(self.bound.values["precision"] == "float64")
        return context

    def _build(self) -> Experiment:
        b = self.bound
        parts: dict[str, Any] = {}
        if "problem" in b.parts:
            problem = parts["problem"] = b.parts["problem"].build()  # type: ignore[union-attr]
            held_out = np.zeros(problem.parties)
        else:
            data = parts["data"] = b.parts["data"].build()  # type: ignore[union-attr]
            held_out = data.sizes("validation")
            _check_fit(b, data)
            parts["model"] = b.parts["model"].build(features=int(np.prod(data.input_shape)),  # type: ignore[union-attr]
                                                    classes=data.outputs, task=data.task, shape=data.input_shape,
                                                    vocabulary=data.vocabulary)
        solver = b.parts["solver"].build()  # type: ignore[union-attr]
        algorithms = {label: part.build(solver=solver) for label, part in b.parts["algorithms"].items()}  # type: ignore[union-attr]
        for label, algorithm in algorithms.items():
            check_held_out(algorithm, held_out, f"algorithms.{label}")
        who = b.parts["participation"].build()  # type: ignore[union-attr]
        parts |= {"solver": solver, "algorithms": algorithms, "participation": who}
        clock = b.parts.get("clock")
        parts |= {"clock": clock.build()} if isinstance(clock, Bound) else {}
        experiment = Experiment(**{**b.values, **parts})
        try:
            who.check(len(experiment.parties))
        except ValueError as error:
            raise InputError(f"participation: {error}") from error
        _check_shared(experiment)
        return experiment

    def preset_of(self, label: str) -> str:
        """The name of the algorithm that a label stands for."""
        algorithms = self.bound.parts["algorithms"]
        assert isinstance(algorithms, dict)
        return str(algorithms[label].name)

    def to_yaml(self, *, comments: bool = True) -> str:
        """The experiment with every default filled in and, as comments, the help of every key."""
        settings = _commented(self.bound) if comments else self.bound.settings()
        text = StringIO()
        yaml = YAML()
        yaml.width = 1_000_000  # no folding: a comment stands at the end of a key's one line
        yaml.representer.add_representer(type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null"))
        yaml.dump(settings, text)
        return text.getvalue()


def experiments() -> dict[str, str]:
    """The shipped experiments: text by name."""
    folder = resources.files("resolvent.study") / "experiments"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return {f.name.removesuffix(".yaml"): f.read_text(encoding="utf-8") for f in files}


def slug(label: str) -> str:
    """A label as a folder name: ``FedAvg+`` becomes ``FedAvg-plus``."""
    return re.sub(r"[^\w.-]+", "-", label.replace("+", "-plus"))[:60].strip("-.") or "method"


def _check(bound: Bound) -> None:
    """Refuse what types do not say, before any data are loaded."""
    values, algorithms = bound.values, bound.parts["algorithms"]
    assert isinstance(algorithms, dict)
    for key in ("data", "model"):
        if "problem" in bound.parts and key in bound.parts:
            raise InputError(f"{key}: a problem brings its own; leave {key} out, or the problem")
        if "problem" not in bound.parts and key not in bound.parts:
            raise InputError(f"{key}: missing; {parameters(Experiment)[key].help}")
    for key, least in (("rounds", 1), ("evaluate_every", 1), ("seed", 0)):
        value = values[key]
        if value is not None and not least <= value < 2**31:
            raise InputError(f"{key}: {value} must be at least {least} and less than 2^31")
    folders: dict[str, str] = {}
    for label in algorithms:
        where = f"algorithms.{label}"
        if not label.isprintable() or not label.strip():
            raise InputError(f"algorithms: {label!r} cannot be a label: give it letters that can be seen")
        other = folders.setdefault(slug(label).casefold(), label)
        if other != label:
            raise InputError(f"{where}: the models of {label!r} and of {other!r} would go to the same folder, "
                             f"{slug(label)}: give one of them another label")


def _check_fit(bound: Bound, data: FederatedData) -> None:
    """Refuse a model for another task than the data's, and data that say nothing about how well a model does."""
    def serves(function: Callable[..., Any]) -> bool:
        known = parameters(function)
        if ("vocabulary" in known) != bool(data.vocabulary):
            return False
        return "task" in known or ("classes" in known) == (data.task == "classification")

    model = bound.parts["model"]
    assert isinstance(model, Bound)
    if not serves(model.function):
        fitting = [name for name, function in REGISTRIES[Model].functions.items() if serves(function)]
        raise InputError(f"model: {model.name} does not fit the data {data.name!r}, which are "
                         f"{'tokens, ' if data.vocabulary else ''}for {data.task}: "
                         f"use {' or '.join(fitting)}")
    if not data.sizes("test").any():
        raise InputError("data: no party has test samples, by which the methods are compared: give a larger share "
                         "with test")


def _check_shared(experiment: Experiment) -> None:
    """Refuse a method without a shared model where the methods are compared by the shared model's gap."""
    problem = experiment.problem
    if problem is None:
        return
    w0, shares = problem.init(jax.random.key(0)), experiment.participation.shares(problem.sizes)
    for label, algorithm in experiment.algorithms.items():
        if algorithm.server_model(algorithm.init(w0, shares)) is None:
            raise InputError(f"algorithms.{label}: it has no shared model, by whose optimality gap the methods are "
                             "compared: leave it out")


@contextlib.contextmanager
def _naming(place: Callable[[str], str]) -> Iterator[None]:
    """Put the file and line before an error that starts with the path of a key."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place(str(error).split(': ', 1)[0])}: {error}") from error


def _change(settings: Any, change: str) -> str:
    """Apply one ``key.path=value``; the value is YAML. Returns the path."""
    path, equals, value = change.partition("=")
    if not equals or not path:
        raise InputError(f"--set {change}: expected key.path=value, such as --set rounds=50")
    try:
        new = YAML(typ="safe", pure=True).load(value)
    except YAMLError as error:
        raise InputError(f"--set {change}: {value!r} is not a YAML value") from error
    here: Any = settings
    rest, parent = path, ""
    while True:
        key = _step(here, rest)
        if key == rest:
            break
        parent, rest = f"{parent}.{key}".strip("."), rest[len(key) + 1:]
        if isinstance(here.get(key), str):
            here[key] = {"name": here[key]}
        here = here.setdefault(key, {})
        if not isinstance(here, Mapping):
            raise InputError(f"--set {change}: {parent} is a value, not a mapping")
    if key == "name" and parent and here.get("name", new) != new:
        here.clear()  # another component has other settings
    here[key] = new
    return path


def _names(change: str) -> bool:
    """Whether a change chooses another component."""
    return change.partition("=")[0].endswith(".name")


def _within(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}.")


def _step(settings: Any, path: str) -> str:
    """The first key of a path: the longest that is there (labels may have dots in them), or up to the first dot."""
    there = [str(key) for key in settings if str(key) and _within(path, str(key))]
    return max(there, key=len) if there else path.partition(".")[0] or path


def _line_of(settings: Any, path: str) -> str:
    """``:7`` where the last known key of a path stands on line 7."""
    line = None
    here, rest = settings, path
    while rest and isinstance(here, CommentedMap | CommentedSeq):
        keys: Any = here if isinstance(here, CommentedMap) else range(len(here))
        key = next((k for k in keys if str(k) == _step(keys, rest)), None)
        if key is None:
            break
        if key in (here.lc.data or {}):
            line = here.lc.data[key][0] + 1
        rest = rest[len(str(key)) + 1:]
        here = here[key]
    return f":{line}" if line else ""


def _commented(bound: Bound) -> CommentedMap:
    """The settings with each key's help above it."""
    result = CommentedMap()
    if bound.name is not None:
        result["name"] = bound.name
    known = parameters(bound.function)
    for key in bound.settings():
        if key == "name" and bound.name is not None:
            continue
        part = bound.parts.get(key)
        if isinstance(part, dict):
            result[key] = CommentedMap((k, _commented(p)) for k, p in part.items())
        else:
            result[key] = bound.settings()[key] if part is None else _commented(part)
        if known[key].help:
            result.yaml_add_eol_comment(known[key].help, key)
    return result
