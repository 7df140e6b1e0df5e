"""Experiments: a small file that states the federation, the methods to compare, and how they run."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation.rules import Full, Participation
from resolvent.comparisons.experiment.binding import Bound, bind, parameters
from resolvent.comparisons.experiment.changes import Locations, apply_changes
from resolvent.comparisons.experiment.checks import (
    check_model,
    check_settings,
    check_shared_models,
    has_default_folds,
    model_of_problem,
)
from resolvent.comparisons.experiment.yaml_files import read_text, read_yaml, with_help, write_yaml
from resolvent.comparisons.judgement.decision_rule import DecisionRule
from resolvent.comparisons.judgement.decisive_metric import DecisiveMetric, choose_decisive_metric
from resolvent.comparisons.tuning.settings import Search
from resolvent.data.encoded_rows import Encoding
from resolvent.data.federated import FederatedData
from resolvent.data.partition.folds import default_folds
from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.errors import InputError, alternatives, quote
from resolvent.problem.metrics.metric import Metric
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem
from resolvent.problem.problem_data import ProblemData, ProblemModel
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.simulator.record.callbacks import Callback
from resolvent.simulator.run_options import Diagnostic, RunOptions

__all__ = ["Experiment", "ExperimentFile", "experiments"]

Precision = Literal["float32", "float64"]


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(RunOptions):
    """What a comparison may set, in a program and in a file.

    Attributes:
        seeds: number of seeds, counted up from ``seed``. With every further seed the first model, the cohorts and the
            minibatches are drawn again, and each party's samples that are no test samples are split again into training
            and validation samples of the same numbers. The scores are means over the seeds.
        folds: number of folds; 1: one split. Each row of a site is tested once, by a model that is trained without the
            rows of its fold. Hyperparameters (``search``) are chosen separately in each fold, a table is encoded again
            in each, and every seed has other folds. It takes as many runs as there are folds. Default: 5 for a table
            with fewer than 20,000 rows, without ``search`` and ``start``; otherwise, and between the sites of a
            federation, 1.
        decide_by: the metric by which sites are advised; default: the log loss or the squared error, with the model's
            score beside it (of numbers the RMSE), or the balanced accuracy if one class has over 80 % of the samples.
        decision: how a site weighs gains and losses, such as ``{cost: 1}`` if a loss is as bad as a gain of the same
            size; default: cost 2, margin 0.01.
        title: heading of the report.
    """

    seeds: int = 1
    folds: int | None = None
    decide_by: str | None = None
    decision: DecisionRule | None = None
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """What is compared; the first settings of a file."""

    data: FederatedData | ProblemData | None = None
    model: Model | ProblemModel | None = None
    solver: LocalSolver
    algorithms: dict[str, Algorithm]
    problem: Problem | None = None


@dataclass(frozen=True, kw_only=True)
class Experiment(ComparisonOptions, _Compared):
    """A comparison of algorithms on one federation with the same random numbers.

    Attributes:
        data: the parties' samples: a data set by name with its settings, your own table, or data of your own.
        model: the model that every party trains.
        solver: the local solver of each party, for every algorithm that does not set its own.
        algorithms: the algorithms to compare, each with a label of your choice; or a list of their names, which are
            then the labels.
        problem: objectives of another kind, instead of data and model. If their optimum is known, the methods are
            compared by their optimality gap, otherwise by the problem's score.
        rounds: number of rounds.
        diagnostics: quantities to measure in addition to the scores.
        precision: float32, or float64 to resolve gaps far below 1e-6.
        metrics: further metrics of each party's validation and test samples, such as [balanced_accuracy, roc_auc]; or a
            mapping from names of your choice. `resolvent list metrics` has all; module:function is one of your own.
        class_weight: weights of the classes in the loss: `balanced` (every class counts the same in the federation),
            `balanced_per_party` (in each party), or a mapping from classes to weights; default: all 1.
        search: hyperparameters that `resolvent tune` chooses on validation samples. `resolvent run` reads it with folds
            only, and searches separately in each fold.
        start: a finished run, or one folder of its `models`, whose shared model the server and all parties begin with;
            default: the first model of the seed.
        privacy: the delta at which each party's epsilon is measured, and the epsilon before which a run stops, such as
            {delta: 1e-5, epsilon: 3}. All algorithms must be differentially private. {secure_sums: true} lets the
            server of a federation learn sums of replies only.
        callbacks: what is called at evaluations, such as [EarlyStopping, {name: CSV, folder: curves}].
    """

    participation: Participation = Full()  # noqa: RUF009 - a frozen module
    rounds: int = 100
    diagnostics: tuple[Diagnostic, ...] = ("model_change", "line")
    metrics: dict[str, Metric] | None = None
    start: str | None = None
    precision: Precision = "float32"
    class_weight: Literal["balanced", "balanced_per_party"] | dict[str, float] | None = None
    search: Search | None = None
    callbacks: dict[str, Callback] | None = None  # `on_evaluation` of a file
    decisive: DecisiveMetric | None = None  # chosen when the parts are built; no setting of a file

    @property
    def number_of_folds(self) -> int:
        """The number of folds."""
        assert self.folds is not None  # follows from the data when the parts are built
        return self.folds

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties' names, in the order of their ids: those of the data, or ``party 0``, ``party 1``, ..."""
        if self.data is not None:
            return tuple(self.data.parties)
        assert self.problem is not None
        return tuple(f"party {k}" for k in range(self.problem.parties))


@dataclass(frozen=True)
class ExperimentFile:
    """An experiment as checked settings, from which its parts can be built.

    Attributes:
        name: the name of the experiment and of its run folder.
        bound: the settings.
        location: the file and line of a path, for errors.
    """

    name: str
    bound: Bound
    location: Locations

    @classmethod
    def load(cls, source: str, changes: Sequence[str] = ()) -> "ExperimentFile":
        """Read an experiment and apply changes.

        Args:
            source: the name of a shipped experiment, or the path of a YAML file.
            changes: each ``key.path=value``.

        Raises:
            InputError: there is no such file, or it is wrong. The message has the file, the line, the key and the
                allowed values.
        """
        path = Path(source)
        if path.suffix in (".yaml", ".yml"):
            return cls.parse(read_text(path), source, path.stem, changes)
        shipped = experiments()
        if source not in shipped:
            if path.is_file():
                raise InputError(f"{quote(source)} is no experiment file. If it is a table, name it in one, by data: "
                                 f"{{table: {path}, party: COLUMN, label: COLUMN}}; `resolvent new experiment mine` "
                                 "writes mine.yaml to start from")
            raise InputError(f"there is no experiment {quote(source)}{alternatives(source, shipped)}; or give a "
                             "file whose name ends in .yaml")
        return cls.parse(shipped[source], f"{source}.yaml", source, changes)

    @classmethod
    def parse(cls, text: str, source: str, name: str, changes: Sequence[str] = ()) -> "ExperimentFile":
        """Check the text of an experiment.

        Args:
            text: YAML.
            source: the name of the file in errors.
            name: the name of the experiment.
            changes: each ``key.path=value``.

        Raises:
            InputError: it is wrong. The message has the source, the line, the key and the allowed values.
        """
        return cls.of_settings(read_yaml(text, source), source, name, changes)

    @classmethod
    def of_settings(cls, settings: Any, source: str, name: str, changes: Sequence[str] = ()) -> "ExperimentFile":
        """Check the settings of an experiment as they were read; the changes are made in place.

        Raises:
            InputError: they are wrong, see ``parse``.
        """
        if not isinstance(settings, Mapping):
            raise InputError(f"{source}:1: expected a mapping with keys {', '.join(parameters(Experiment))}")
        location = Locations(source, settings, apply_changes(settings, changes))
        with location.of_errors():
            bound = bind(Experiment, settings)
            check_settings(bound)
            return cls(name, bound, location)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings with every default."""
        return self.bound.settings()

    def build(self) -> Experiment:
        """Load the data and build the model and the algorithms.

        Raises:
            InputError: the data cannot be loaded, or a part refuses its settings.
        """
        with self.location.of_errors(), self.precision():
            return self._build()

    def build_model(self, inputs: FederatedData | Encoding) -> Model:
        """The model for these inputs, or for those of a fitted encoding."""
        part = self.bound.part("model")
        model = part.build(
            features=int(np.prod(inputs.input_shape)), classes=inputs.outputs, task=inputs.task,
            targets=inputs.outputs,
            shape=inputs.input_shape, vocabulary=inputs.vocabulary)
        if not isinstance(model, Model):
            raise InputError(f"model: {part.name} does not fit samples, it is for data of another kind: use a model of "
                             "the library, or module:function of your own that returns a Model")
        return model

    def precision(self) -> contextlib.AbstractContextManager[None]:
        """A context in which arrays have the experiment's precision."""
        context: contextlib.AbstractContextManager[None] = jax.enable_x64(self.bound.values["precision"] == "float64")
        return context

    def _build(self) -> Experiment:
        from resolvent.algorithms.combinators.fixed_point_sums import with_integer_sums
        from resolvent.simulator.task import Task, check_held_out  # a file is shown without them

        parts: dict[str, Any] = {}
        if "problem" in self.bound.parts:
            parts["problem"] = self.bound.part("problem").build()
            held_out = np.zeros(parts["problem"].parties)
        else:
            data = parts["data"] = self.bound.part("data").build()
            if isinstance(data, ProblemData):
                held_out = np.zeros(len(data))
                parts["model"] = model_of_problem(self.bound.part("model"), data)
                try:
                    parts["problem"] = data.problem(parts["model"])
                except InputError as error:
                    error.args = (f"data: {error}",)  # of its own kind: missing data stay missing data
                    raise
            else:
                held_out = check_model(self.bound, data)
                if (weights := self.bound.values["class_weight"]) is not None:
                    parts["data"] = data.with_class_weights(weights)
                parts["model"] = self.build_model(data)
        parts["solver"] = self.bound.part("solver").build()
        parts["algorithms"] = {label: part.build(solver=parts["solver"])
                               for label, part in self.bound.labelled("algorithms").items()}
        if not held_out.any():
            task = Task(parts.get("model"), parts["data"], None) if "problem" not in parts else Task(
                None, None, parts["problem"])
            for label, algorithm in parts["algorithms"].items():
                name = f"algorithms.{label}"
                check_held_out(task.prepare(algorithm, name).description, held_out, name)
        parts["participation"] = self.bound.part("participation").build()
        for key in ("clock", "privacy", "decision", "search"):
            if key in self.bound.parts:
                parts[key] = self.bound.part(key).build()
        budget: PrivacyBudget | None = parts.get("privacy")
        if budget is not None and budget.secure_sums:
            parts["algorithms"] = {label: with_integer_sums(algorithm, parts["participation"])
                                   for label, algorithm in parts["algorithms"].items()}
        if budget is not None and budget.delta is None:
            del parts["privacy"]
        parts["callbacks"] = {label: part.build() for label, part in self.bound.labelled("callbacks").items()}
        parts["on_evaluation"] = tuple(parts["callbacks"].values())
        folds = default_folds(parts.get("data")) if has_default_folds(self.bound) else self.bound.values["folds"] or 1
        experiment = Experiment(**{**self.bound.values, **parts, **self._metrics(parts), "folds": folds})
        try:
            experiment.participation.check(len(experiment.parties))
        except ValueError as error:
            raise InputError(f"participation: {error}") from error
        check_shared_models(experiment.problem, experiment.algorithms, experiment.participation)
        return experiment

    def _metrics(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics, the one that compares the methods, and the data with a note about the choice."""
        bound, decide_by = self.bound.labelled("metrics"), self.bound.values["decide_by"]
        if "problem" in parts:
            for key, value in {"metrics": bound, "decide_by": decide_by,
                               "class_weight": self.bound.values["class_weight"]}.items():
                if value:
                    raise InputError(f"{key}: it needs labels, which a problem or prices do not have: remove this "
                                     "setting")
            return {}
        metrics = {label: part.build() for label, part in bound.items()}
        choice = choose_decisive_metric(parts["data"], parts["model"], metrics, decide_by)
        data = parts["data"].with_notes(choice.note) if choice.note else parts["data"]
        return {"data": data, "metrics": choice.metrics, "decide_by": choice.name, "decisive": choice}

    def preset_of(self, label: str) -> str:
        """The name of the algorithm that a label stands for."""
        return str(self.bound.labelled("algorithms")[label].name)

    def to_yaml(self, *, comments: bool = True) -> str:
        """The experiment with every default and, as comments, the help of every key."""
        return write_yaml(with_help(self.bound) if comments else self.bound.settings())


def experiments() -> dict[str, str]:
    """The shipped experiments: text by name."""
    files = (resources.files("resolvent.comparisons") / "experiments").iterdir()
    return {file.name.removesuffix(".yaml"): file.read_text("utf-8") for file in sorted(files, key=lambda f: f.name)}
