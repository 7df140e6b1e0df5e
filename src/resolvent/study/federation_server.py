"""The server of a federation: agreement on the tables, the rounds of every method, and the run folder for the lead.

It does not depend on an engine, and has no rows. Its files are enough to resume a run in another process.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from resolvent.data.encoding import TableEncoding
from resolvent.data.encoding_files import read_encoding, to_plain, write_encoding
from resolvent.deploy.coordinator import Coordinator, FederationResult, FederationStoppedError
from resolvent.deploy.exchange import RoundRules
from resolvent.deploy.reports import EvaluationReport, PhaseReport, Report, StartReport
from resolvent.deploy.schema import TableReport, agree
from resolvent.deploy.stores import ServerStore
from resolvent.deploy.transport import Transport
from resolvent.errors import InputError
from resolvent.problem.models import Model
from resolvent.simulate.model_folder import SavedModels
from resolvent.simulate.tree_files import digest
from resolvent.study.federation_experiment import FederatedExperiment
from resolvent.study.federation_protocol import (
    FederationRefusedError,
    MethodTransport,
    ask_all,
    library_version,
    request_bytes,
)
from resolvent.study.federation_results import FederationRun, MethodRun, write_run_folder

__all__ = ["FederationJob", "Observer", "serve_federation"]

Observer = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class FederationJob:
    """The lead's order to run an experiment.

    Attributes:
        run: name of the run. If the server has a run of this name, it is resumed.
        experiment: the text of the experiment.
        sites: names of the sites, in the order of the parties.
        quorum: number of sites that must answer in a phase; None: all.
        grace: seconds for which the server waits for further replies after the quorum.
        deadline: longest wait for replies in seconds.
        retries: how often a phase is repeated if fewer sites than the quorum have answered.
        lost_state: what happens to a site that has lost its state: ``refuse`` or ``restart``.
        rehearsal: whether all participants are on one machine.
    """

    run: str
    experiment: str
    sites: tuple[str, ...]
    quorum: int | None = None
    grace: float = 0.0
    deadline: float = 600.0
    retries: int = 3
    lost_state: str = "refuse"
    rehearsal: bool = False

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> "FederationJob":
        """The job that ``plain`` described."""
        return cls(**{**content, "sites": tuple(content["sites"])})

    def plain(self) -> dict[str, Any]:
        """Plain values, as they are sent."""
        return asdict(self)

    @property
    def rules(self) -> RoundRules:
        """How long the server waits, and for how many sites."""
        return RoundRules(quorum=self.quorum, grace=self.grace, deadline=self.deadline, retries=self.retries)


def serve_federation(job: FederationJob, experiment: FederatedExperiment, transport: Transport, folder: Path,
                     results: Path, observe: Observer) -> dict[str, Any]:
    """Run an experiment over a transport.

    Args:
        job: the lead's order.
        experiment: the experiment, bound with the parts that are installed at the server.
        transport: sends messages to the sites.
        folder: the server's folder of this run.
        results: the folder for the lead.
        observe: called with events for the lead.

    Returns:
        The outcome: its ``status`` is ``complete``, ``refused`` or ``stopped``; the last two have a ``message``.
    """
    try:
        encoding = _agree(job, experiment, transport, folder, observe)
        score = _prepare(job, transport, encoding)
        with experiment.file.precision():
            model = experiment.model(encoding)
            methods, facts = _run_methods(job, experiment, transport, folder, model, encoding, observe)
            run = FederationRun(experiment, job.sites, *facts, methods, score)
            write_run_folder(results, run)
        ask_all(transport, dict.fromkeys(job.sites, request_bytes("finish", run=job.run)), job.deadline)
    except FederationRefusedError as error:
        return {"status": "refused", "message": str(error)}
    except (FederationStoppedError, InputError) as error:
        return {"status": "stopped", "message": str(error)}
    observe({"event": "complete"})
    return {"status": "complete"}


def _agree(job: FederationJob, experiment: FederatedExperiment, transport: Transport, folder: Path,
           observe: Observer) -> TableEncoding:
    """The encoding on which all sites agree.

    Raises:
        FederationRefusedError: a site refuses, or the tables do not fit together.
    """
    requests = {site: request_bytes("describe", run=job.run, party=k, experiment=experiment.text,
                                    version=library_version()) for k, site in enumerate(job.sites)}
    answers = ask_all(transport, requests, job.deadline)
    reports = {}
    for site, answer in answers.items():
        try:
            reports[site] = TableReport.from_plain(answer.get("table"))
        except InputError as error:
            raise FederationRefusedError(f"{site}: {error}") from error
    encoding, conflicts = agree(reports, experiment.table)
    if encoding is None:
        raise FederationRefusedError(f"the tables do not fit together: {'; '.join(conflicts)}")
    path = folder / "encoding.json"
    if path.exists() and to_plain(read_encoding(path)) != to_plain(encoding):
        raise FederationRefusedError(f"the table of a site has changed since the run {job.run} began: start a new run "
                                     "with another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_encoding(path, encoding)
    observe({"event": "agreed", "features": len(encoding.features), "task": encoding.task,
             "rows": {site: dict(report.rows) for site, report in reports.items()}})
    return encoding


def _prepare(job: FederationJob, transport: Transport, encoding: TableEncoding) -> str:
    """Let every site encode its rows; returns the name of the score."""
    request = request_bytes("prepare", run=job.run, encoding=to_plain(encoding))
    answers = ask_all(transport, dict.fromkeys(job.sites, request), job.deadline)
    return str(answers[job.sites[0]].get("score"))


def _run_methods(
    job: FederationJob, experiment: FederatedExperiment, transport: Transport, folder: Path, model: Model,
    encoding: TableEncoding, observe: Observer,
) -> tuple[dict[str, MethodRun], tuple[list[int], list[int]]]:
    """The methods in order, and the numbers of training and test rows of each site."""
    methods: dict[str, MethodRun] = {}
    sizes: tuple[list[int], list[int]] = [], []
    for number, label in enumerate(experiment.labels):
        with ServerStore(folder / "stores" / f"{number:02d}") as store:
            coordinator = Coordinator(
                experiment.algorithm(label), model.init, MethodTransport(transport, number), store,
                rounds=experiment.rounds, seed=experiment.seed, participation=experiment.participation(),
                evaluate_every=experiment.file.bound.values["evaluate_every"], rules=job.rules, method=label,
                lost_state=job.lost_state, rehearsal=job.rehearsal)  # type: ignore[arg-type]
            ends = [time.monotonic()]  # of rounds

            def report_event(report: Report, label: str = label, ends: list[float] = ends) -> None:
                if isinstance(report, PhaseReport):
                    ends.append(time.monotonic())
                observe(_event(label, experiment.rounds, job, model.loss.score_name, report))

            result = coordinator.run(report_event)
        seconds = float(np.median(np.diff(ends))) if len(ends) > 1 else 0.0
        methods[label] = _method_run(label, experiment, model, encoding, result, seconds)
        test = result.record.split_sizes[result.record.splits.index("test")]
        sizes = list(result.record.sizes), list(test)
    return methods, sizes


def _method_run(label: str, experiment: FederatedExperiment, model: Model, encoding: TableEncoding,
                result: FederationResult, seconds: float) -> MethodRun:
    # The lead has no personal models: the tensors have no rows.
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    personal = jax.tree.map(lambda s: np.zeros((0, *s.shape), s.dtype), shapes)
    refused: dict[str, int] = {}
    for report in result.reports:
        if isinstance(report, PhaseReport):
            for k in report.refused:
                site = result.record.parties[k]
                refused[site] = refused.get(site, 0) + 1
    models = SavedModels(label, experiment.rounds, (), personal, result.shared, model, encoding)
    return MethodRun(models, result.metrics, digest(result.state), seconds, result.record.bytes_down,
                     result.record.bytes_up, refused)


def _event(label: str, rounds: int, job: FederationJob, score: str, report: Report) -> dict[str, Any]:
    """A report as an event for the lead, with the names of the sites."""
    names = job.sites
    if isinstance(report, StartReport):
        return {"event": "start", "method": label, "resumed": report.resumed, "rounds": rounds}
    if isinstance(report, PhaseReport):
        return {"event": "round", "method": label, "round": report.round + 1, "phase": report.phase, "rounds": rounds,
                "attempts": report.attempts, "asked": [names[k] for k in report.asked],
                "counted": [names[k] for k in report.counted],
                "refused": {names[k]: reason for k, reason in report.refused.items()},
                "absent": {names[k]: reason for k, reason in report.absent.items()},
                "late": [names[k] for k in report.late]}
    if isinstance(report, EvaluationReport):
        values = [scores[score].get("test") for scores in report.personal.values() if score in scores]
        finite = [value for value in values if value is not None]
        return {"event": "scores", "method": label, "round": report.round, "score": score,
                "mean": float(np.mean(finite)) if finite else None,
                "withheld": [names[k] for k in report.withheld]}
    return {"event": "finish", "method": label, "absent": {names[k]: why for k, why in report.absent.items()}}
