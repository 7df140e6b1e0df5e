"""The experiment of a federation: an experiment file of the simulator whose table is at the sites.

The lead's file may name a table, or leave ``data.table`` and ``data.party`` out. Its text with all defaults is sent to
the server and to the sites, and each binds it with the parts that are installed there. Parts of the user's own, data
sets by name and files are refused before they are read.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.fixed_point_sums import with_integer_sums
from resolvent.algorithms.participation.rules import Participation
from resolvent.comparisons.after.refit_plan import check_can_be_refitted
from resolvent.comparisons.experiment.binding import Bound
from resolvent.comparisons.experiment.checks import straggler_policy_note
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.experiment.own_parts import limit_own_parts
from resolvent.comparisons.experiment.yaml_files import read_text, read_yaml
from resolvent.comparisons.judgement.decision_rule import DecisionRule
from resolvent.data.weights import ClassWeights
from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.errors import InputError
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.policy import FEDERATION, Policy
from resolvent.problem.metrics.metric import Metric
from resolvent.problem.models.model import Model
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.party_tables import table
from resolvent.tables.table_options import SITE_TABLE, TableOptions

# Settings without an effect in a federation, and what they may be.
_NOT_IN_A_FEDERATION = {"start": None, "callbacks": None, "clock": None, "scheduler": "auto", "memory": "auto",
                        "evaluate_parties": None}
_PARTY = "site"


@dataclass(frozen=True)
class FederatedExperiment(Plan):
    """An experiment whose rows are at the sites; ``file`` has the checked settings.

    Attributes:
        has_one_split: whether a site refuses the folds of the file, so that there is one split of the rows.
    """

    kind: ClassVar[str] = "experiment"
    title: ClassVar[str] = "experiment"
    file: ExperimentFile
    policy: Policy = FEDERATION
    refit: Mapping[str, int] | None = None
    keeps_validation: bool = False
    has_one_split: bool = False

    def with_one_split(self) -> "FederatedExperiment":
        """The same experiment without folds."""
        return replace(self, has_one_split=True)

    @override
    def with_refit(self, refit: Any, keeps_validation: Any) -> "FederatedExperiment":
        if refit is None:
            return self
        is_valid = isinstance(refit, Mapping) and refit and isinstance(keeps_validation, bool) and all(
            label in self.labels and type(rounds) is int and 0 < rounds <= self.rounds
            for label, rounds in refit.items())
        if not is_valid:
            raise InputError("refit: give methods of the experiment and their numbers of rounds, which are at most "
                             f"{self.rounds}")
        for label in refit:
            check_can_be_refitted(label, self.algorithm(label))
        return replace(self, refit=dict(refit), keeps_validation=keeps_validation)

    @property
    @override
    def name(self) -> str:
        return self.file.name

    @property
    @override
    def text(self) -> str:
        return self.file.to_yaml(comments=False)

    @property
    @override
    def table(self) -> TableOptions:
        return TableOptions.of(self.file.bound.part("data").values)

    @override
    def precision(self) -> contextlib.AbstractContextManager[None]:
        return self.file.precision()

    @property
    @override
    def rounds(self) -> int:
        return int(self.file.bound.values["rounds"])

    def held_out(self, *, with_test: bool) -> list[str] | None:
        """The splits whose rows do not train in a refit; None if this is no refit.

        Args:
            with_test: whether the site keeps its test rows out of the training.
        """
        if self.refit is None:
            return None
        return [*(["validation"] if self.keeps_validation else []), *(["test"] if with_test else [])]

    @override
    def rounds_of(self, label: str) -> int:
        return self.rounds if self.refit is None else self.refit[label]

    @property
    @override
    def evaluate_every(self) -> int:
        """Without a number in the file, models are evaluated at the end only: each score is an answer about rows."""
        return int(self.file.bound.values["evaluate_every"] or self.rounds)

    @property
    def seed(self) -> int:
        """Seed of all random numbers."""
        return int(self.file.bound.values["seed"])

    @property
    @override
    def seeds(self) -> tuple[int, ...]:
        seeds = int(self.file.bound.values["seeds"]) if self.refit is None else 1
        return tuple(range(self.seed, self.seed + seeds))

    @property
    @override
    def folds(self) -> int:
        """Those of the file; without a number one split, because folds are further questions about the rows."""
        return 1 if self.has_one_split or self.refit is not None else int(self.file.bound.values["folds"] or 1)

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics of the experiment in addition to the loss and the score, by name."""
        return {label: part.build() for label, part in self.file.bound.labelled("metrics").items()}

    @property
    def decide_by(self) -> str | None:
        """The user's choice of the metric that compares methods."""
        name: str | None = self.file.bound.values["decide_by"]
        return name

    @property
    def decision(self) -> DecisionRule | None:
        """How a site weighs gains and losses."""
        return self.file.bound.part("decision").build() if "decision" in self.file.bound.parts else None

    @property
    def class_weight(self) -> ClassWeights | None:
        """Weights of classes in the loss."""
        weights: ClassWeights | None = self.file.bound.values["class_weight"]
        return weights

    @property
    def has_weights(self) -> bool:
        """Whether rows or classes have weights in the loss."""
        return self.class_weight is not None or self.table.weight is not None

    @property
    def alone(self) -> str | None:
        """The label of training alone, of a tuned one if there are several, or None."""
        presets = {self.file.preset_of(label): label for label in reversed(self.labels)}
        return presets.get("careful_local", presets.get("local"))

    @property
    @override
    def labels(self) -> tuple[str, ...]:
        labels = self.file.bound.labelled("algorithms")
        return tuple(label for label in labels if self.refit is None or label in self.refit)

    @override
    def preset_of(self, label: str) -> str:
        return self.file.preset_of(label)

    def algorithm(self, label: str) -> Algorithm:
        """The algorithm of a label."""
        bound = self.file.bound
        algorithm: Algorithm = bound.labelled("algorithms")[label].build(solver=bound.part("solver").build())
        return algorithm if self.privacy is None else with_integer_sums(algorithm, self.participation())

    @property
    @override
    def privacy(self) -> PrivacyBudget | None:
        bound = self.file.bound
        return bound.part("privacy").build() if "privacy" in bound.parts else None

    @override
    def participation(self) -> Participation:
        participation: Participation = self.file.bound.part("participation").build()
        return participation

    @property
    @override
    def note(self) -> str:
        return straggler_policy_note({label: self.algorithm(label) for label in self.labels}, self.participation())

    def model(self, encoding: TableEncoding) -> Model:
        """The model for the inputs of the agreed encoding."""
        return self.file.build_model(encoding)


def experiment_of_file(source: str, changes: Sequence[str] = ()) -> FederatedExperiment:
    """Read the lead's experiment, with changes, each ``key.path=value``."""
    path = Path(source)
    if path.suffix not in (".yaml", ".yml"):
        return _checked(ExperimentFile.load(source, changes), FEDERATION)
    return _bound(read_yaml(read_text(path), source), source, path.stem, changes, FEDERATION)


def experiment_from_text(text: str, name: str, *, policy: Policy = FEDERATION, models: Sequence[str] = (),
                         folder: Path | None = None) -> FederatedExperiment:
    """Bind the text that another participant has sent; see ``experiment_of_settings``."""
    settings = read_yaml(text, "experiment.yaml")
    return experiment_of_settings(settings, name, policy=policy, models=models, folder=folder)


def experiment_of_settings(settings: Any, name: str, *, policy: Policy = FEDERATION, models: Sequence[str] = (),
                           folder: Path | None = None) -> FederatedExperiment:
    """Bind the settings of another participant, with the parts that are installed in this environment.

    Args:
        settings: the content of the text that the participant has sent; it is changed in place.
        policy: that of this participant.
        models: the models of the user's own that this participant allows, such as ``networks:small``.
        folder: the folder that is searched for their modules; default: the current folder.

    Raises:
        InputError: a setting is wrong, is a part of the user's own that is not allowed, or the data are not a table.
    """
    with limit_own_parts(None if policy.allows_any_part else models, folder):
        return _bound(settings, "experiment.yaml", name, (), policy)


def _bound(settings: Any, source: str, name: str, changes: Sequence[str], policy: Policy) -> FederatedExperiment:
    data = settings.get("data") if isinstance(settings, Mapping) else None
    if isinstance(data, Mapping) and data.get("name", "table") == "table":
        changes = [*changes, f"data.table={SITE_TABLE}", *([] if "party" in data else [f"data.party={_PARTY}"])]
    return _checked(ExperimentFile.of_settings(settings, source, name, changes), policy)


def _checked(file: ExperimentFile, policy: Policy) -> FederatedExperiment:
    data: Any = file.bound.parts.get("data")
    if not isinstance(data, Bound) or data.function is not table:
        raise InputError(f"{file.location('data')}: data: in a federation every site has a table: write "
                         "data: {label: COLUMN}, and the columns' settings as for a simulation")
    if data.values["unseen"] == "missing" and data.values["missing"] == "refuse":
        raise InputError(f"{file.location('data')}: data.unseen: missing needs missing: impute or indicate, because "
                         "missing values are refused")
    for key, default in _NOT_IN_A_FEDERATION.items():
        if file.bound.values.get(key) not in (None, default) or file.bound.parts.get(key):
            raise InputError(f"{file.location(key)}: {key}: it is not supported in a federation: remove the setting")
    model = file.bound.part("model") if "model" in file.bound.parts else None
    if model is not None and model.values.get("base") is not None:
        raise InputError(f"{file.location('model.base')}: model.base: in a federation no participant reads a file that "
                         "another one names: remove the setting, or use a model of your own that every site allows")
    experiment = FederatedExperiment(file, policy)
    if experiment.privacy is not None:
        if experiment.privacy.delta is not None:
            raise InputError(f"{file.location('privacy')}: privacy.delta: a federation does not measure epsilon in its "
                             "rounds: remove the setting; resolvent site check shows the epsilon of a plan")
        if experiment.class_weight == "balanced_per_party":
            raise InputError(f"{file.location('class_weight')}: class_weight: with privacy.secure_sums the server "
                             "knows the weights of the classes of all sites together only: use balanced")
        for label in experiment.labels:
            try:
                experiment.algorithm(label)
            except InputError as error:
                raise InputError(f"{file.location(f'algorithms.{label}')}: privacy.secure_sums: {label}: "
                                 f"{error}") from error
    for other, has_it in {"several seeds": len(experiment.seeds) > 1, "a search": "search" in file.bound.parts}.items():
        if experiment.folds > 1 and has_it:
            raise InputError(f"{file.location('folds')}: folds: {experiment.folds}: in a federation folds do not go "
                             f"with {other}: set folds: 1")
    if experiment.has_weights and len(experiment.seeds) > 1:
        raise InputError(f"{file.location('seeds')}: seeds: with weights of rows or classes a federation has one seed, "
                         "because the sums of the weights change with the split of the rows: remove the setting, and "
                         "run the experiment again with another seed")
    return experiment
