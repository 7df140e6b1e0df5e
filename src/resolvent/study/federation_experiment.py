"""The experiment of a federation: an experiment file of the simulator whose table is at the sites.

The lead's file may name a table, or leave ``data.table`` and ``data.party`` out. Its text with all defaults is sent to
the server and to the sites, and each binds it with the parts that are installed there. Parts of the user's own, data
sets by name and files are refused before they are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation import Participation
from resolvent.data.encoding import TableEncoding
from resolvent.data.tables import table
from resolvent.deploy.schema import TableSettings
from resolvent.errors import InputError
from resolvent.problem.models import Model
from resolvent.study.binding import Bound
from resolvent.study.experiment import ExperimentFile
from resolvent.study.own_parts import limit_own_parts
from resolvent.study.yaml_checks import MAX_FILE_SIZE
from resolvent.study.yaml_files import read_yaml

__all__ = ["FederatedExperiment", "experiment_from_text", "experiment_of_file"]

_NOT_IN_A_FEDERATION = {"seeds": 1, "metrics": None, "decide_by": None}
_TABLE, _PARTY = "the table of each site", "site"


@dataclass(frozen=True)
class FederatedExperiment:
    """An experiment whose rows are at the sites.

    Attributes:
        file: the checked settings.
        is_rehearsal: whether all participants are on one machine, so that parts of the user's own are allowed.
    """

    file: ExperimentFile
    is_rehearsal: bool

    @property
    def text(self) -> str:
        """The text that is sent: every setting, without the path of the lead's table."""
        return self.file.to_yaml(comments=False)

    @property
    def table(self) -> TableSettings:
        """The settings of the sites' tables."""
        values = self._part("data").values
        return TableSettings(**{name: values[name] for name in TableSettings._fields})

    @property
    def rounds(self) -> int:
        """Number of rounds of each method."""
        return int(self.file.bound.values["rounds"])

    @property
    def seed(self) -> int:
        """Seed of all random numbers."""
        return int(self.file.bound.values["seed"])

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the methods."""
        return tuple(self._methods)

    def algorithm(self, label: str) -> Algorithm:
        """The algorithm of a label."""
        algorithm: Algorithm = self._methods[label].build(solver=self._part("solver").build())
        return algorithm

    def participation(self) -> Participation:
        """Which parties take part in a round."""
        participation: Participation = self._part("participation").build()
        return participation

    def model(self, encoding: TableEncoding) -> Model:
        """The model for the inputs of the agreed encoding."""
        return self.file.build_model(encoding)

    @property
    def _methods(self) -> Mapping[str, Bound]:
        methods = self.file.bound.parts["algorithms"]
        assert isinstance(methods, dict)
        return methods

    def _part(self, key: str) -> Bound:
        part = self.file.bound.parts[key]
        assert isinstance(part, Bound)
        return part


def experiment_of_file(source: str, changes: Sequence[str] = (), *, rehearsal: bool = False) -> FederatedExperiment:
    """Read the lead's experiment.

    Args:
        source: a YAML file, or the name of a shipped experiment.
        changes: each ``key.path=value``.
        rehearsal: whether parts of the user's own are allowed.

    Raises:
        InputError: the file is wrong, or its data are no table.
    """
    path = Path(source)
    if path.suffix not in (".yaml", ".yml"):
        return _checked(ExperimentFile.load(source, changes), is_rehearsal=rehearsal)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_FILE_SIZE + 1)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {source}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{source}:1: the file is not text in UTF-8: {error}") from error
    return _parsed(text, source, path.stem, changes, is_rehearsal=rehearsal)


def experiment_from_text(text: str, name: str, *, rehearsal: bool = False, models: Sequence[str] = (),
                         folder: Path | None = None) -> FederatedExperiment:
    """Bind the text that another participant has sent, with the parts that are installed in this environment.

    Args:
        text: the experiment.
        name: its name.
        rehearsal: whether all parts of the user's own are allowed.
        models: the models of the user's own that this participant allows, such as ``networks:small``.
        folder: the folder that is searched for their modules; default: the current folder.

    Raises:
        InputError: the text is wrong, has a part of the user's own that is not allowed, or its data are no table.
    """
    with limit_own_parts(None if rehearsal else models, folder):
        return _parsed(text, "experiment.yaml", name, (), is_rehearsal=rehearsal)


def _parsed(text: str, source: str, name: str, changes: Sequence[str], *, is_rehearsal: bool) -> FederatedExperiment:
    settings = read_yaml(text, source)
    data = settings.get("data") if isinstance(settings, Mapping) else None
    if isinstance(data, Mapping) and data.get("name", "table") == "table" and "prices" not in data:
        changes = [*changes, f"data.table={_TABLE}", *([] if "party" in data else [f"data.party={_PARTY}"])]
    return _checked(ExperimentFile.parse(text, source, name, changes), is_rehearsal=is_rehearsal)


def _checked(file: ExperimentFile, *, is_rehearsal: bool) -> FederatedExperiment:
    data: Any = file.bound.parts.get("data")
    if not isinstance(data, Bound) or data.function is not table:
        raise InputError(f"{file.location('data')}: data: in a federation every site has a table: write "
                         "data: {label: COLUMN}, and the columns' settings as for a simulation")
    if data.values.get("weight") is not None:
        raise InputError(f"{file.location('data.weight')}: data.weight: weights of rows are not supported in a "
                         "federation: remove the setting")
    for key, default in _NOT_IN_A_FEDERATION.items():
        if file.bound.values.get(key, default) != default or file.bound.parts.get(key):
            raise InputError(f"{file.location(key)}: {key}: it is not supported in a federation, which has one seed, "
                             "and the loss and the score of the model: remove the setting")
    return FederatedExperiment(file, is_rehearsal)
