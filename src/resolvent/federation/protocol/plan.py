"""What a lead orders: an experiment or a regression, read from a file or from the text that another has sent."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from resolvent.comparisons.experiment.yaml_files import read_text
from resolvent.comparisons.regression.regression_file import RegressionFile, is_regression
from resolvent.federation.protocol.experiment import FederatedExperiment, experiment_from_text
from resolvent.federation.protocol.regression import FederatedRegression

Plan: TypeAlias = FederatedExperiment | FederatedRegression


def plan_from_text(text: str, name: str, *, rehearsal: bool = False, models: Sequence[str] = (),
                   folder: Path | None = None) -> Plan:
    """Bind the text that another participant has sent; see ``experiment_from_text``."""
    if is_regression(text, "experiment.yaml"):
        return FederatedRegression(RegressionFile.parse(text, "experiment.yaml", name), rehearsal)
    return experiment_from_text(text, name, rehearsal=rehearsal, models=models, folder=folder)


def is_regression_file(source: str) -> bool:
    """Whether a file is that of a regression; the name of an experiment is not."""
    path = Path(source)
    return path.suffix in (".yaml", ".yml") and path.is_file() and is_regression(read_text(path), source)
