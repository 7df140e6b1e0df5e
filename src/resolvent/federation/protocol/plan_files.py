"""The plan of a file, or of the text that another participant has sent. The text says of which kind it is."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from resolvent.comparisons.experiment.yaml_files import read_yaml
from resolvent.federation.protocol.experiment import experiment_of_file, experiment_of_settings
from resolvent.federation.protocol.numbers_plan import FederatedDescription, FederatedSurvival
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.policy import FEDERATION, Policy
from resolvent.federation.protocol.regression import FederatedRegression
from resolvent.federation.protocol.table_plan import TablePlan

_TABLE_PLANS: tuple[type[TablePlan], ...] = (FederatedRegression, FederatedDescription, FederatedSurvival)


def plan_from_text(text: str, name: str, *, policy: Policy = FEDERATION, models: Sequence[str] = (),
                   folder: Path | None = None) -> Plan:
    """Bind the text that another participant has sent; see ``experiment_of_settings``."""
    settings = read_yaml(text, "experiment.yaml")
    for plan in _TABLE_PLANS:
        if isinstance(settings, Mapping) and plan.kind in settings:
            return plan(plan.file_type.of_settings(settings, "experiment.yaml", name), policy)
    return experiment_of_settings(settings, name, policy=policy, models=models, folder=folder)


def plan_of_file(source: str, changes: Sequence[str] = ()) -> Plan:
    """The plan of the lead's file, with changes, each ``key.path=value``; an experiment also by its name."""
    return table_plan_of_file(source, changes) or experiment_of_file(source, changes)


def table_plan_of_file(source: str, changes: Sequence[str] = (), policy: Policy = FEDERATION) -> TablePlan | None:
    """The plan of the lead's file, if it is on a table; None if it is an experiment."""
    found = (plan for plan in _TABLE_PLANS if Path(source).is_file() and plan.file_type.is_in(source))
    plan = next(found, None)
    return None if plan is None else plan(plan.file_type.load(source, changes), policy)
