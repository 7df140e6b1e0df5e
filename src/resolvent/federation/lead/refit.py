"""The lead's side of a refit in a federation: the sites train the chosen method again on all their rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from resolvent.algorithms.combinators.ridge_path import uses_held_out
from resolvent.comparisons.after.refit_folder import REFIT_FOLDER, write_refit
from resolvent.comparisons.after.refit_plan import RefitPlan, best_round, plan_refit
from resolvent.comparisons.experiment.checks import folder_name
from resolvent.comparisons.runs.record import EXPERIMENT_FILE, read_metrics, read_record
from resolvent.comparisons.runs.run_folder import is_complete
from resolvent.data.files.atomic_files import remove_folder
from resolvent.errors import InputError
from resolvent.federation.lead.lead import federate
from resolvent.federation.protocol.events import Observer
from resolvent.federation.protocol.experiment import FederatedExperiment, experiment_of_file
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import KitNote
from resolvent.federation.protocol.names import name_refit
from resolvent.simulator.record.model_folder import ModelFolder
from resolvent.tables.encoding import TableEncoding

_UNFINISHED = "federation"  # the run folder of the refit, in the folder of the refits


class RefitOrder:
    """What the lead orders: the run, the plan and the experiment.

    Attributes:
        plan: the chosen method, the numbers of rounds, and the method of each site as far as the lead knows it.
        experiment: the experiment of the run, of which these methods are trained again.
    """

    def __init__(self, run: Path, method: str | None = None, rounds: int | None = None) -> None:
        """Read a run folder of a federation."""
        record, metrics = read_record(run), read_metrics(run)
        if not record.run:
            raise InputError(f"{run} is no run of a federation: leave the kit out")
        plan = plan_refit(record, metrics, method, rounds)
        # A site that keeps its scores may have decided to train alone, and the lead does not know it.
        labels = [label for label in record.methods if label in (plan.method, record.alone)]
        counts = {label: rounds or best_round(record, metrics, label) for label in labels}
        self.run, self.plan, self.sites = run, plan._replace(rounds=counts), tuple(record.data.parties)
        experiment = experiment_of_file(str(run / EXPERIMENT_FILE))
        self.experiment = experiment.with_refit(counts, self._uses_held_out(experiment))
        self.name = name_refit(record.run)

    def _uses_held_out(self, experiment: FederatedExperiment) -> bool:
        """Whether a method chooses by validation rows."""
        encoding = ModelFolder(self.run / "models" / folder_name(self.plan.method)).encoding
        assert isinstance(encoding, TableEncoding)
        with experiment.file.precision():
            model = experiment.model(encoding)
            return any(uses_held_out(experiment.algorithm(label), model) for label in self.plan.rounds)

    def job(self, **rules: Any) -> FederationJob:
        """The order to the server."""
        return FederationJob(self.name, self.experiment.text, self.sites, refit=self.experiment.refit,
                             keeps_validation=self.experiment.keeps_validation, **rules)


def refit_federation(note: KitNote, order: RefitOrder, observe: Observer, *,
                     notify: Callable[[str], None]) -> RefitPlan:
    """Let the sites of a run train its chosen method again, and write the shared models into the run folder.

    Every site writes its models into its own folder of the run. If the command ends, it continues when it is started
    again.

    Raises:
        InputError: the server cannot be reached.
        FederationEndedError: a site refuses, or does not answer.
    """
    results = order.run / REFIT_FOLDER / _UNFINISHED
    results.parent.mkdir(exist_ok=True)
    if is_complete(results):  # of a command that was killed before it could write the models
        finished = {label: method.rounds for label, method in read_record(results).methods.items()}
        if finished != order.plan.rounds:
            remove_folder(results)
    federate(note, order.experiment, results, order.job(), observe, notify=notify)
    write_federated_refit(order, results)
    remove_folder(results)
    return order.plan


def write_federated_refit(order: RefitOrder, results: Path) -> None:
    """Write the shared models of a refit into the folder of its run."""
    data, knows_all = read_record(results).data, not order.experiment.keeps_validation
    counts = {site: [train, train + test if knows_all else None]
              for site, train, test in zip(data.parties, data.train, data.test or (), strict=True)}
    models = {label: results / "models" / folder_name(label) for label in order.plan.rounds}
    write_refit(order.run, order.plan, models, dict.fromkeys(models, counts))
