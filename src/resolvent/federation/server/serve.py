"""The server of a federation: agreement on the tables, the rounds of every method, and the run folder for the lead.

It does not depend on an engine, and has no rows. Its files are enough to resume a run in another process.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from resolvent.comparisons.judgement.metrics import format_value, title_of
from resolvent.comparisons.judgement.site_judgement import SiteJudgement
from resolvent.comparisons.judgement.verdict import judge, refusals
from resolvent.comparisons.runs.compared_methods import MethodRun
from resolvent.comparisons.runs.summary import refused_replies
from resolvent.differential_privacy.parties import noise_parties
from resolvent.errors import InputError, shorten
from resolvent.federation.protocol.exchange import FederationStoppedError
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.federation.protocol.fitted_regression import write_fit
from resolvent.federation.protocol.job import FederationJob, Observer
from resolvent.federation.protocol.judgement import join_judgements, read_judgement
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.regression import FederatedRegression
from resolvent.federation.protocol.reports import FinishReport, PhaseReport, Report, event_of_report
from resolvent.federation.protocol.requests import FederationRefusedError, ask_each, request_bytes, run_of_method
from resolvent.federation.protocol.results import SPLIT, FederationRun, TrainedMethod, evidence_of_run, write_run_folder
from resolvent.federation.protocol.run_status import STATUS_FILE
from resolvent.federation.protocol.stores import ServerStore
from resolvent.federation.protocol.transport import Transport, TransportError
from resolvent.federation.secure.rules import SumRules
from resolvent.federation.server.agreement import RunAgreement, agree_on_run
from resolvent.federation.server.coordinator import Coordinator
from resolvent.federation.server.regression import fit_regression
from resolvent.federation.server.result import FederationResult
from resolvent.federation.server.status_file import StatusFile
from resolvent.federation.server.waits import WatchedTransport
from resolvent.problem.metrics.metric import name_metrics
from resolvent.simulator.record.metrics_table import MetricsTable
from resolvent.simulator.record.model_folder import SavedModels
from resolvent.simulator.storage.tree_files import digest

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)


def serve_federation(job: FederationJob, experiment: Plan, transport: Transport, folder: Path,
                     results: Path, observe: Observer, *, kit: Path | None = None,
                     expect: Callable[[Callable[[], Mapping[str, Any]]], None] | None = None) -> dict[str, Any]:
    """Run an experiment over a transport.

    Args:
        job: the lead's order.
        experiment: the experiment, bound with the parts that are installed at the server.
        transport: sends messages to the sites.
        kit: the server's kit, in which the engine notes second sessions, and which has the list of revoked keys; None
            without an engine.
        expect: a function that is called once with ``waiting`` of the run's transport, which says what the run waits
            for.

    Returns:
        The outcome: its ``status`` is ``complete``, ``refused`` or ``stopped``; the last two have a ``message``. The
        folder has the status of the run at any moment, see ``RunStatus``.

    Raises:
        TransportError: the engine does not move messages any more.
    """
    with StatusFile(folder / STATUS_FILE, job.run, job.sites, observe) as status:
        watched = WatchedTransport(transport, job.run, titles_of_runs(job, experiment), experiment.rounds, kit,
                                   status.observe)
        status.follow(watched)
        if expect is not None:
            expect(watched.waiting)
        outcome = _serve(job, experiment, watched, folder, results, status.observe)
        status.end(outcome["status"])
    return outcome


def _serve(job: FederationJob, experiment: Plan, transport: WatchedTransport, folder: Path,
           results: Path, observe: Observer) -> dict[str, Any]:
    try:
        experiment = experiment.with_refit(job.refit, job.keeps_validation)
        if isinstance(experiment, FederatedRegression):
            write_fit(results, fit_regression(job, experiment, transport, folder, observe))
        else:
            _compare_methods(job, experiment, transport, folder, results, observe)
    except FederationRefusedError as error:
        return {"status": "refused", "message": str(error)}
    except (FederationStoppedError, InputError) as error:
        return {"status": "stopped", "message": str(error)}
    except TransportError:
        raise
    except OSError as error:
        return {"status": "stopped", "message": f"the server's disk cannot be used ({shorten(error)}): make room or "
                                                "correct its rights, then run the command again to continue"}
    except Exception as error:  # it would come again: starting the job again does not help
        _log.exception("the server's part of the run failed")
        return {"status": "stopped", "message": f"the server failed with {type(error).__name__}: {shorten(error)}; its "
                                                "log says where. Everything up to the last round is stored"}
    observe({"event": "complete"})
    return {"status": "complete"}


def _compare_methods(job: FederationJob, experiment: FederatedExperiment, transport: WatchedTransport, folder: Path,
                     results: Path, observe: Observer) -> None:
    """Run all methods of an experiment, and write the run folder for the lead."""
    agreement = agree_on_run(job, experiment, transport, folder, observe)
    with experiment.file.precision():
        rounds = _Rounds(job, experiment, transport, folder, agreement, observe)
        methods = rounds.run()
        ends = _finish(job, transport, agreement, experiment, rounds.without_models)
        write_run_folder(results, _joined(job.run, experiment, agreement, rounds, methods, ends))


def titles_of_runs(job: FederationJob, experiment: Plan) -> dict[str, str]:
    """The name in the messages of each method with each seed, see ``run_of_method`` -> its title for the lead."""
    titles = [label if len(experiment.seeds) == 1 else f"{label}, seed {seed}"
              for seed in experiment.seeds for label in experiment.labels]
    return {run_of_method(job.run, number, job.plan): title for number, title in enumerate(titles)}


class _Rounds:
    """The rounds of every method with every seed.

    Attributes:
        sizes: site -> numbers of its training and test rows.
        without_models: site -> title of a method -> why the site has not stored its models.
    """

    def __init__(self, job: FederationJob, experiment: FederatedExperiment, transport: WatchedTransport, folder: Path,
                 agreement: RunAgreement, observe: Observer) -> None:
        self._job, self._experiment, self._transport, self._folder, self._agreement, self._observe = (
            job, experiment, transport, folder, agreement, observe)
        self.model = experiment.model(agreement.encoding)
        self.sizes: dict[str, tuple[int, int]] = {}
        self.without_models: dict[str, dict[str, str]] = {}

    def run(self) -> dict[str, TrainedMethod]:
        """The outcome of each method; rounds that are stored are not run again."""
        labels, seeds = self._experiment.labels, self._experiment.seeds
        runs = [[self._run_method(i * len(labels) + number, label, seed) for number, label in enumerate(labels)]
                for i, seed in enumerate(seeds)]
        return {label: TrainedMethod.of_seeds([of_seed[i] for of_seed in runs]) for i, label in enumerate(labels)}

    def _run_method(self, number: int, label: str, seed: int) -> TrainedMethod:
        job, experiment = self._job, self._experiment
        title = titles_of_runs(job, experiment)[run_of_method(job.run, number, job.plan)]
        ends = [time.monotonic()]  # of rounds

        def report_event(report: Report) -> None:
            if isinstance(report, PhaseReport):
                ends.append(time.monotonic())
            self._observe(event_of_report(title, experiment.rounds_of(label), coordinator.parties,
                                        self._agreement.decisive.name, report))

        with ServerStore(self._folder / "stores" / f"{number:02d}") as store:
            # A method that has begun keeps its parties: those whose key is revoked are absent.
            self._transport.choose_parties(without_excluded=job.quorum is not None and not store.exists())
            algorithm = experiment.algorithm(label)
            coordinator = Coordinator(
                algorithm, self.model.init, self._transport, store,
                rounds=experiment.rounds_of(label), seed=seed, participation=experiment.participation(),
                evaluate_every=experiment.file.bound.values["evaluate_every"], rules=job.rules, method=label,
                lost_state=job.lost_state,  # type: ignore[arg-type]
                rehearsal=experiment.is_rehearsal, run=run_of_method(job.run, number, job.plan),
                secure=SumRules.of_plan(experiment.privacy, min_sites=max(2, noise_parties(algorithm))),
                samples=self._agreement.rows["train"],
                metrics=tuple(name_metrics(self._agreement.decisive.metrics, self.model.loss.score_name)))
            result = coordinator.run(report_event)
        record = result.record
        absent = next((r.absent for r in reversed(result.reports) if isinstance(r, FinishReport)), {})
        excluded = dict.fromkeys(record.excluded, "it has lost its state and is no longer asked")
        for k, reason in {**excluded, **absent}.items():
            self.without_models.setdefault(record.parties[k], {})[title] = reason
        if experiment.privacy is None:
            tests = record.split_sizes[record.splits.index(SPLIT)]
            self.sizes |= dict(zip(record.parties, zip(record.sizes, tests, strict=True), strict=True))
        return self._method_run(label, seed, result, float(np.median(np.diff(ends))) if len(ends) > 1 else 0.0)

    def _method_run(self, label: str, seed: int, result: FederationResult, seconds: float) -> TrainedMethod:
        import pandas as pd

        # The lead has no personal models: the tensors have no rows.
        shapes = jax.eval_shape(self.model.init, jax.random.key(0))
        personal = jax.tree.map(lambda s: np.zeros((0, *s.shape), s.dtype), shapes)
        refused: Counter[str] = Counter()
        for report in result.reports:
            if isinstance(report, PhaseReport):
                refused.update(result.record.parties[k] for k in report.refused)
        # A method that began after a site had joined or left has other ids than the run.
        ids = {k: self._agreement.sites.index(name) for k, name in enumerate(result.record.parties)}
        metrics = result.metrics.assign(seed=seed, party=result.metrics["party"].map(ids, na_action="ignore"))
        # As objects, because pandas derives no dtype from columns in which all values are missing.
        parts = [part.astype(object) for part in (metrics, _norms(label, seed, result.reports, ids))]
        metrics = pd.concat(parts, ignore_index=True).astype({
            "round": metrics["round"].dtype, "party": "Int64", "value": float, "seed": int})
        models = SavedModels(label, self._experiment.rounds_of(label), (), personal, result.shared, self.model,
                             self._agreement.encoding, digest(result.state))
        return TrainedMethod(models, (MethodRun(metrics, digest(result.state), (seconds,), refused=refused,
                                                bytes=(result.record.bytes_down, result.record.bytes_up)),))


def _norms(label: str, seed: int, reports: Sequence[Report], ids: Mapping[int, int]) -> "pd.DataFrame":
    """The norm of each site's update by round, also of those that did not count; the longest of the phases."""
    table = MetricsTable(label)
    norms: dict[int, dict[int, float]] = {}
    for report in reports:
        if isinstance(report, PhaseReport):
            of_round = norms.setdefault(report.round + 1, {})
            for k, norm in report.norms.items():
                of_round[ids[k]] = max(of_round.get(ids[k], 0.0), math.inf if norm is None else norm)
    for rounds, of_round in norms.items():
        table.add(rounds, np.array(sorted(of_round), int), None, "update_norm",
                  np.array([of_round[k] for k in sorted(of_round)]))
    return table.table().assign(seed=seed)


class _Ends(NamedTuple):
    """What the sites have answered after the last round.

    Attributes:
        judgements: the judgements of the sites that let their scores out.
        notes: facts about the other sites.
        warnings: sites that have not answered.
    """

    judgements: list[SiteJudgement]
    notes: list[str]
    warnings: list[str]


def _finish(job: FederationJob, transport: Transport, agreement: RunAgreement, experiment: FederatedExperiment,
            without_models: Mapping[str, Mapping[str, str]]) -> _Ends:
    """Let every site write its models and judge the methods."""
    lost = [f"{site} has not stored its models of {title}: {reason}"
            for site, reasons in without_models.items() for title, reason in reasons.items()]
    if lost and job.quorum is None:
        raise FederationStoppedError(f"{'; '.join(lost)}: run the command again, with --quorum to do without the site")
    request = request_bytes("finish", run=job.run, plan=job.plan)
    answers, problems = ask_each(transport, dict.fromkeys(job.sites, request), job.deadline)
    warnings = [f"{site} has not answered at the end, and has no models of this run: {reason}"
                for site, reason in problems.items()]
    if warnings and job.quorum is None:
        raise FederationStoppedError(f"{'; '.join(warnings)}: run the command again")
    warnings += lost
    ends = _Ends([], [], warnings)
    for site, answer in answers.items():
        done = answer.get("methods")
        missing = [label for label in experiment.labels if isinstance(done, list) and label not in done]
        if missing and site not in without_models:
            ends.notes.append(f"{site} joined the run after {', '.join(missing)}: it has no models of these methods")
        if answer.get("judgement") is None:
            if done != [] and experiment.refit is None and experiment.privacy is None:
                ends.notes.append(f"{site} does not let its scores out")
            continue
        try:
            ends.judgements.append(read_judgement(answer["judgement"], agreement.sites.index(site), site,
                                                  experiment.labels))
        except InputError as error:
            ends.warnings.append(f"{site}: {error}")
    return ends


def _joined(run: str, experiment: FederatedExperiment, agreement: RunAgreement, rounds: _Rounds,
            methods: dict[str, TrainedMethod], ends: _Ends) -> FederationRun:
    """The outcome of the run for the lead."""
    train, test = zip(*(rounds.sizes.get(site, (0, 0)) for site in agreement.sites), strict=True)
    evidence = evidence_of_run(experiment, agreement.decisive, methods, rounds.model.loss,
                               dict(enumerate(agreement.sites)), train=train)
    sites = join_judgements(ends.judgements, evidence.methods, evidence.alone, is_share=evidence.is_share)
    has_scores = bool(((evidence.metrics["metric"] == evidence.score) & (evidence.metrics["split"] == SPLIT)).any())
    verdict = judge(evidence if has_scores else replace(evidence, alone=None), sites, experiment.decision)
    if not has_scores:
        finding = "No site lets its scores out: each site can see its own."
        if experiment.privacy is not None:
            finding = _mean_finding(methods, evidence.score)
        if experiment.refit is not None:
            finding = "The methods were trained again on all rows; no row is left on which they could be measured."
        verdict = replace(verdict, finding=finding)
    note = [agreement.decisive.note] if agreement.decisive.note else []
    notes = (*note, *agreement.notes, *ends.notes)
    not_counted = [line for label, method in methods.items()
                   if (line := refusals(label, refused_replies(method.runs))) is not None]
    return FederationRun(experiment, agreement.sites, train, test, methods, verdict, notes,
                         [*not_counted, *ends.warnings], name=run)


def _mean_finding(methods: Mapping[str, TrainedMethod], score: str) -> str:
    """The mean scores of the methods after their last round, from secure sums."""
    means = []
    for label, method in methods.items():
        rows = method.metrics[(method.metrics["metric"] == f"mean_{score}") & (method.metrics["split"] == SPLIT)]
        if len(last := rows[rows["round"] == rows["round"].max()]):
            means.append(f"{label} {format_value(float(last['value'].mean()), score)}")
    if not means:
        return "No site lets its scores out, and their secure sum had no result: each site can see its own."
    return f"The mean {title_of(score)} over the sites is {', '.join(means)}. Secure sums hide that of each site."
