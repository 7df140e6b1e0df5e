"""The server's part of a plan of any kind: agreement of the sites, the rounds of every method, and the end.

Its files in the folder of the run are enough to continue in another process.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Array
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, ServerState
from resolvent.algorithms.combinators.combinator import Wrapped
from resolvent.data.files.atomic_files import write_text
from resolvent.data.files.plain_values import read_plain
from resolvent.differential_privacy.parties import noise_parties
from resolvent.errors import InputError
from resolvent.federation.protocol import events
from resolvent.federation.protocol.exchange import FederationRefusedError, FederationStoppedError, ask_about_plan
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.names import JOURNALS_FILE, library_version, run_of_method
from resolvent.federation.protocol.plan import Part, Plan
from resolvent.federation.protocol.refusals import RefusalCode, reasons_of_sites
from resolvent.federation.protocol.stores import ServerStore
from resolvent.federation.protocol.table_plan import TablePlan
from resolvent.federation.secure.rules import SumRules
from resolvent.federation.server.coordinator import Coordinator, FederationResult
from resolvent.federation.server.watch import WatchedTransport
from resolvent.math.tree import Vector
from resolvent.problem.problem import Problem

_TABLES = "tables.json"
_AT_THE_SITE = ("The log of a site is engine.log in its kit; there, resolvent site check KIT SITE.yaml PLAN.yaml "
                "says what does not fit")
_Plan = TypeVar("_Plan", bound=Plan)
_TablePlan = TypeVar("_TablePlan", bound=TablePlan)
_Report = TypeVar("_Report")


class Known(NamedTuple):
    """What the server has stored about the tables of a run that has begun.

    Attributes:
        founders: the sites with which the run began, whose reports determine the agreement.
        tables: site -> the report on its table as plain values, in the order in which the sites joined.
        total: the report on all rows as plain values, if the server has no other.
        folds: the same of each fold.
    """

    founders: tuple[str, ...]
    tables: dict[str, Any]
    total: Any = None
    folds: Sequence[Any] = ()


class Agreed(NamedTuple):
    """What the sites of a run have agreed on.

    Attributes:
        contents: site -> content of the message ``prepare``.
        known: what is stored when all sites have accepted.
        rows: site -> name of a set of rows, such as a split -> its number of rows; empty if only their sums are told.
        event: what the lead is told.
    """

    contents: Mapping[str, Mapping[str, Any]]
    known: Known
    rows: Mapping[str, Mapping[str, int]]
    event: events.Agreement


class Outcome(NamedTuple):
    """The outcome of the rounds of a method with a seed and a fold; ``seconds`` is the median duration of a round."""

    result: FederationResult
    seconds: float


class ServedPlan(ABC, Generic[_Plan]):
    """One plan at the server.

    Attributes:
        without_models: site -> title of a method -> why the site has not stored its models.
    """

    def __init__(self, job: FederationJob, plan: _Plan, transport: WatchedTransport, folder: Path,
                 observe: events.Observer) -> None:
        self.job, self.plan, self.transport, self.folder, self.observe = job, plan, transport, folder, observe
        self.without_models: dict[str, dict[str, str]] = {}
        self._rows: Mapping[str, Mapping[str, int]] = {}

    # What a kind of plan says

    @abstractmethod
    def _agree(self, answers: Mapping[str, Mapping[str, Any]], known: Known | None) -> Agreed:
        """The agreement from the sites' answers about their tables.

        Raises:
            InputError: the tables do not fit together, or an answer cannot be read.
        """

    def _accept(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        """Read the answers to ``prepare``."""

    @abstractmethod
    def _run_methods(self) -> None:
        """Run every method with every seed by ``_run_method``."""

    @abstractmethod
    def _write(self, results: Path, answers: Mapping[str, Mapping[str, Any]], warnings: list[str]) -> None:
        """Write the results for the lead.

        Args:
            answers: site -> its answer after the last round.
            warnings: what is missing, for the lead.
        """

    # What is the same for all kinds

    def _read_reports(self, answers: Mapping[str, Mapping[str, Any]], kind: type[_Report]) -> dict[str, _Report]:
        """Site -> its report on its table."""
        return {site: read_plain(kind, answer.get("table"), f"{site}: the site sent no report on its table")
                for site, answer in answers.items()}

    def serve(self, results: Path) -> None:
        """Run the plan; what is stored is not run again.

        Raises:
            FederationRefusedError: a site refuses, or the sites do not agree; nothing has been trained.
            FederationStoppedError: a site does not answer.
        """
        self._check_order()
        answers = self._ask_all("describe", self._descriptions())
        path = self.folder / _TABLES
        known = Known(**json.loads(path.read_text("utf-8"))) if path.is_file() else None
        self._refuse_changed_tables(answers, known)
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            agreed = self._agree(answers, known)
            self.observe(agreed.event)
            self._rows = agreed.rows
            sizes = {site: {"rows": counts["train"], "signature": answers[site].get("size")}
                     for site, counts in agreed.rows.items()}
            contents = {site: {"plan": self.job.plan, "sizes": sizes, **content}
                        for site, content in agreed.contents.items()}
            self._accept(self._ask_all("prepare", contents))
        except FederationRefusedError:
            raise
        except InputError as error:
            raise FederationRefusedError(str(error)) from error
        # After that, because a site that joins and refuses does not belong to the run.
        write_text(path, json.dumps(agreed.known._asdict()))
        with self.plan.precision():
            self._run_methods()
            answers, missing = self._ask_to_finish()
            self._write(results, answers, missing)
        heads = {site: answer["journal"] for site, answer in answers.items()
                 if isinstance(answer.get("journal"), str)}
        write_text(results / JOURNALS_FILE, json.dumps(heads, indent=1))

    def _check_order(self) -> None:
        job, plan = self.job, self.plan
        if plan.needs_all_sites and (job.quorum is not None or job.roster):
            raise FederationRefusedError(f"a {plan.title} needs all of its sites in every round, because "
                                         f"{plan.needs_all_sites}: run it without federation.quorum, and with the "
                                         "sites with which it began")
        rules = SumRules.of_plan(plan.privacy)
        if rules is not None and len(job.sites) < rules.min_sites:
            raise FederationRefusedError(f"a secure sum has at least {rules.min_sites} sites, and the run has "
                                         f"{len(job.sites)}: with fewer, a site's own numbers could be computed from "
                                         "it")

    def _ask_all(self, kind: str, contents: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Send a message about the plan to every site, and return the answers.

        Raises:
            FederationRefusedError: a site refuses; the message names all such sites.
            FederationStoppedError: a site does not answer, or waits for the approval of the plan.
        """
        rules = self.job.rules
        answers = ask_about_plan(self.transport, kind, self.job.run, contents, rules)
        if absent := answers.absent:
            is_lost = all(answers.codes.get(site) == RefusalCode.WAITING or reason == rules.no_answer
                          for site, reason in absent.items())
            if is_lost:
                raise FederationStoppedError(reasons_of_sites(absent))
            raise FederationRefusedError(f"{reasons_of_sites(absent)}. {_AT_THE_SITE}")
        return {site: answers.values[site] for site in contents}  # in the order of the sites, also after a retry

    def _descriptions(self) -> dict[str, dict[str, Any]]:
        job, plan = self.job, self.plan
        return {site: {"party": job.numbered.index(site), "experiment": job.experiment, "version": library_version(),
                       "sites": list(job.sites), "roster": list(job.roster), "signature": job.signature,
                       "refit": plan.refit, "keeps_validation": plan.keeps_validation} for site in job.sites}

    def _refuse_changed_tables(self, answers: Mapping[str, Mapping[str, Any]], known: Known | None) -> None:
        if known is None:
            return
        changed = [site for site in self.job.sites
                   if site in known.tables and known.tables[site] != answers[site].get("table")]
        if changed:
            raise FederationRefusedError(f"the table of {', '.join(changed)} has changed since the run {self.job.run} "
                                         "began: start a new run with another --out")
        if {*self.job.sites} == {*known.founders}:
            return
        if self.plan.privacy is not None:
            raise FederationRefusedError("the sites of a run with secure sums cannot change: each has accepted the "
                                         "others' keys. Continue with the same sites, or start a new run")
        if self.plan.folds > 1:
            raise FederationRefusedError("the sites of a run with folds cannot change: every fold has an encoding of "
                                         "its own. Continue with the same sites, or start a new run")

    def _run_method(self, label: str, part: Part, algorithm: Algorithm, source: Problem | Callable[[Array], Vector], *,
                    score: str, samples: int, metrics: Sequence[str] = (),
                    rows: Mapping[str, Mapping[str, int]] | None = None,
                    has_ended: Callable[[ServerState], bool] | None = None) -> Outcome:
        """The outcome of a method with a seed and a fold; rounds that are stored are not run again.

        Args:
            source: the problem, or a model's ``init``.
            score: name of the score that the lead sees.
            samples: number of training samples of all sites.
            metrics: names of the metrics that the sites add to the loss and the score.
            rows: see ``Agreed``, those of a fold; None: those of the whole table.
            has_ended: see ``Coordinator``.
        """
        job, plan = self.job, self.plan
        number = plan.parts.index(part) * len(plan.labels) + plan.labels.index(label)
        run = run_of_method(job.run, number, job.plan)
        title = titles_of_runs(job, plan)[run]
        ends = [time.monotonic()]  # of rounds

        def report_event(report: events.Event) -> None:
            if isinstance(report, events.PhaseReport):
                ends.append(time.monotonic())
            shown = report.with_mean(score) if isinstance(report, events.EvaluationReport) else report
            self.observe(replace(shown, method=title, planned=plan.rounds_of(label), names=coordinator.parties))

        with ServerStore(self.folder / "stores" / f"{number:02d}") as store:
            # A method that has begun keeps its parties: those whose key is revoked are absent.
            self.transport.choose_parties(without_excluded=job.quorum is not None and not store.exists())
            coordinator = Coordinator(
                algorithm, source, self.transport, store, rounds=plan.rounds_of(label), seed=part.seed,
                participation=plan.participation(), evaluate_every=plan.evaluate_every, rules=job.rules, method=label,
                lost_state=job.lost_state,  # type: ignore[arg-type]
                policy=plan.policy, run=run, samples=samples, metrics=metrics,
                reported={} if plan.privacy is not None else self._rows if rows is None else rows, has_ended=has_ended,
                has_scores=part.fold is None,
                secure=SumRules.of_plan(plan.privacy, min_sites=max(2, noise_parties(algorithm))))
            result = coordinator.run(report_event)
        self._note_losses(title, result)
        return Outcome(result, float(np.median(np.diff(ends))) if len(ends) > 1 else 0.0)

    def _note_losses(self, title: str, result: FederationResult) -> None:
        """Note which sites have no models of a method; a plan that needs all sites stops if a reply did not count."""
        record = result.record
        lost = [f"{record.parties[k]}: {reason}" for report in result.reports
                if isinstance(report, events.PhaseReport | events.FinishReport)
                for reasons in (report.absent, getattr(report, "refused", {})) for k, reason in reasons.items()]
        if lost and self.plan.needs_all_sites:
            raise FederationStoppedError("a reply did not count, so that the sums are not those of all sites: "
                                         f"{'; '.join(lost)}")
        absent = next((r.absent for r in reversed(result.reports) if isinstance(r, events.FinishReport)), {})
        excluded = dict.fromkeys(record.excluded, "it has lost its state and is no longer asked")
        for k, reason in {**excluded, **absent}.items():
            self.without_models.setdefault(record.parties[k], {})[title] = reason

    def _ask_to_finish(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Let every site store what it keeps; returns the answers, and what is missing."""
        job = self.job
        lost = [f"{site} has not stored its models of {title}: {reason}"
                for site, reasons in self.without_models.items() for title, reason in reasons.items()]
        if lost and job.quorum is None:
            raise FederationStoppedError(f"{'; '.join(lost)}: run the command again, with --set federation.quorum to "
                                         "do without the site")
        contents = {site: {"plan": job.plan} for site in job.sites}
        answers = ask_about_plan(self.transport, "finish", job.run, contents, job.rules)
        silent = [f"{site} has not answered at the end, and has no models of this run: {reason}"
                  for site, reason in answers.absent.items()]
        if silent and job.quorum is None:
            raise FederationStoppedError(f"{'; '.join(silent)}: run the command again")
        return {site: answers.values[site] for site in job.sites if site in answers.values}, silent + lost


class ServedTablePlan(ServedPlan[_TablePlan]):
    """A plan on a table at the server: the sites are those of the whole run, and all use the same agreement."""

    @override
    def _agree(self, answers: Mapping[str, Mapping[str, Any]], known: Known | None) -> Agreed:
        self._agreement = self.plan.agree(self._read_reports(answers, self.plan.report_type))
        sites: dict[str, int] = self._agreement.sites
        return Agreed({site: {"agreement": asdict(self._agreement)} for site in self.job.sites},
                      Known(self.job.sites, {site: answer["table"] for site, answer in answers.items()}),
                      {site: {"train": count} for site, count in sites.items()},
                      events.Agreement(len(self.plan.variables), sites))

    def _run_rounds(self, label: str, part: Part, algorithm: Algorithm, problem: Problem,
                    has_ended: Callable[[Any], bool]) -> tuple[FederationResult, Any]:
        """The result of a method, and its last state without the integers of a secure sum around it.

        Args:
            has_ended: (such a state) -> whether the run ends before its last round.
        """
        def state_of(state: ServerState) -> Any:
            return state.inner if isinstance(state, Wrapped) else state

        result = self._run_method(label, part, algorithm, problem, score="objective",
                                  samples=sum(self._agreement.sites.values()),
                                  has_ended=lambda state: has_ended(state_of(state))).result
        return result, state_of(result.state)


def titles_of_runs(job: FederationJob, plan: Plan) -> dict[str, str]:
    """The name in the messages of each method with each seed and fold, see ``run_of_method`` -> its title."""
    titles = [label + plan.title_of(part) for part in plan.parts for label in plan.labels]
    return {run_of_method(job.run, number, job.plan): title for number, title in enumerate(titles)}
