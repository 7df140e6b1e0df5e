"""The plan of a file, or of the text that another participant has sent. The text says of which kind it is."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from resolvent.comparisons.experiment.yaml_files import read_text, read_yaml
from resolvent.comparisons.regression.regression_file import RegressionFile
from resolvent.federation.protocol.experiment import FederatedExperiment, experiment_from_text, experiment_of_file
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.regression import FederatedRegression


def plan_from_text(text: str, name: str, *, rehearsal: bool = False, models: Sequence[str] = (),
                   folder: Path | None = None) -> Plan:
    """Bind the text that another participant has sent; see ``experiment_from_text``."""
    if kind_of_text(text, "experiment.yaml") == FederatedRegression.kind:
        return FederatedRegression(RegressionFile.parse(text, "experiment.yaml", name), rehearsal)
    return experiment_from_text(text, name, rehearsal=rehearsal, models=models, folder=folder)


def plan_of_file(source: str, changes: Sequence[str] = ()) -> Plan:
    """The plan of the lead's file, with changes, each ``key.path=value``; an experiment also by its name."""
    if kind_of_file(source) == FederatedRegression.kind:
        return FederatedRegression(RegressionFile.load(source, changes), is_rehearsal=False)
    return experiment_of_file(source, changes)


def kind_of_file(source: str) -> str:
    """The kind of the plan in a file, see ``Plan.kind``; the name of an experiment is one of an experiment."""
    path = Path(source)
    is_file = path.suffix in (".yaml", ".yml") and path.is_file()
    return kind_of_text(read_text(path), source) if is_file else FederatedExperiment.kind


def kind_of_text(text: str, source: str) -> str:
    """The kind of the plan in the text of a file: the section that it has."""
    settings = read_yaml(text, source)
    is_regression = isinstance(settings, Mapping) and FederatedRegression.kind in settings
    return FederatedRegression.kind if is_regression else FederatedExperiment.kind
