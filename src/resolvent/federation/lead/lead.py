"""The lead's side of a federation: it starts the job, follows it, and starts it again if a process has ended.

The folder of an unfinished run has a note with the name of the run and its jobs. The server resumes the run of that
name from its checkpoint, so that the lead's process, too, can be killed and started again.
"""

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from resolvent.comparisons.description.description import Description
from resolvent.comparisons.experiment.checks import folder_name
from resolvent.comparisons.runs.record import RunRecord, read_metrics, read_record
from resolvent.comparisons.runs.run_folder import check_folder, finished_record, is_complete, open_folder
from resolvent.comparisons.survival.survival import Survival
from resolvent.data.files.atomic_files import write_text
from resolvent.data.files.folder_lock import locked
from resolvent.errors import InputError, alternatives, quote
from resolvent.federation.lead.watchdog import Watchdog
from resolvent.federation.protocol.events import Observer
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.federation.protocol.fitted_regression import FIT_FILE, read_fit
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import KitNote
from resolvent.federation.protocol.names import NOTE_FILE
from resolvent.federation.protocol.numbers_plan import FederatedDescription, FederatedSurvival
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.regression import FederatedRegression
from resolvent.federation.server.watch import FederationEndedError
from resolvent.tables.owners import natural_order

__all__ = ["FEDERATION_FILE", "FederationEndedError", "federate", "has_sites", "read_sites", "write_sites"]

FEDERATION_FILE = "federation.json"
_ANOTHER_RUN = "give --out another folder for another run"
_RULES = ("quorum", "grace", "deadline", "retries", "lost_state")  # in which the order of a command can differ


def has_sites(kit: Path) -> bool:
    """Whether a kit has the names of the federation's sites."""
    return (kit / FEDERATION_FILE).is_file()


def write_sites(kit: Path, name: str | None, sites: Sequence[str]) -> None:
    """Write the names of the federation's sites into a kit; without a name, that of the federation stays."""
    name = json.loads((kit / FEDERATION_FILE).read_text("utf-8"))["federation"] if name is None else name
    write_text(kit / FEDERATION_FILE, json.dumps({"federation": name, "sites": sorted(sites, key=natural_order)}))


def read_sites(kit: Path, chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """The sites of a federation in the order of the parties.

    Args:
        chosen: names of sites; only these are returned. Default: all sites.
    """
    try:
        sites = tuple(json.loads((kit / FEDERATION_FILE).read_text("utf-8"))["sites"])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{kit} does not say which sites the federation has: {FEDERATION_FILE} is missing or damaged: "
                         "use a kit that 'resolvent lead kits' made") from error
    for name in chosen:
        if name not in sites:
            raise InputError(f"--sites: there is no site {quote(name)}{alternatives(name, sites)}")
    return tuple(name for name in sites if not chosen or name in chosen)


class LedPlan(NamedTuple):
    """The lead's part of a kind of plan: what is kept of its results.

    Attributes:
        is_complete: whether a folder has complete results.
        read: the results in a folder, or ``InputError``: they are of another plan.
        write: (folder, the order) -> the results, after the lead's files are written beside the server's.
    """

    is_complete: Callable[[Path], bool]
    read: Callable[[Path], Any]
    write: Callable[[Path, FederationJob], Any]


_STORED: dict[type[Plan], tuple[str, Callable[[Path], Any]]] = {
    FederatedRegression: (FIT_FILE, read_fit), FederatedDescription: (Description.file(), Description.read),
    FederatedSurvival: (Survival.file(), Survival.read)}
"""Kind of a plan on a table -> file of the server's results, and what reads them: ``settings``, and the ``result``."""


def led_plan(note: KitNote, plan: Any) -> LedPlan:
    """The lead's part of a plan.

    An experiment has a run folder, with its report and its signed card; its result is the ``RunRecord``. A plan on a
    table has a page and numbers; its result is what the plan's command prints.
    """
    if type(plan) not in _STORED:
        return LedPlan(is_complete, lambda folder: finished_record(folder, plan.file, _ANOTHER_RUN),
                       lambda work, order: _write_report(note, plan, work, order))
    file, stored = _STORED[type(plan)]

    def read(folder: Path) -> Any:
        found = stored(folder)
        if found.settings != plan.settings:
            raise InputError(f"{folder} has the result of another {plan.title}: {_ANOTHER_RUN}")
        return found.result

    def write(work: Path, order: FederationJob) -> Any:
        result = stored(work).result
        result.save(work, overwrite=True)
        return result

    return LedPlan(lambda folder: (folder / file).is_file(), read, write)


def _write_report(note: KitNote, experiment: FederatedExperiment, work: Path, order: FederationJob) -> RunRecord:
    from resolvent.comparisons.runs.report import write_report  # imports matplotlib and jinja2, which take long

    record, metrics = read_record(work), read_metrics(work)
    write_report(work, record, metrics)
    if order.refit is None:
        from resolvent.federation.lead.model_card import write_model_card

        write_model_card(work, record, metrics, job=order, lead=note.name, experiment=experiment, sign=note.sign)
    return record


def federate(note: KitNote, plan: Plan, out: Path, job: FederationJob, observe: Observer, *,
             notify: Callable[[str], None], has_sites: bool = False) -> Any:
    """Let the sites run a plan, and write its results; an interrupted run is resumed.

    Args:
        note: the participant of the lead's kit; with Flower, that of the server.
        job: sites and rules. The run gets the name of an unfinished run in the folder, or a new one.
        has_sites: whether the user has chosen the sites. Then an unfinished run continues with these sites from its
            next round on; otherwise it continues with the sites that it has.

    Returns:
        The result: of an experiment its ``RunRecord``, of a regression the ``Regression``, of a description the
        ``Description``, of a survival analysis the ``Survival``.

    Raises:
        InputError: the folder is in use, or the server cannot be reached.
        FederationEndedError: a site refuses or has not answered.
    """
    led = led_plan(note, plan)
    if plan.note:
        notify(plan.note)
    with locked(out):
        is_done = led.is_complete(out)
        if is_done and plan.policy.continues_runs:
            result = led.read(out)
            (out.resolve() / NOTE_FILE).unlink(missing_ok=True)
            notify(f"{out} is a complete run of this {plan.title}, and nothing is started: {_ANOTHER_RUN}. A complete "
                   "run cannot be extended; one with more rounds, such as --set rounds=100, is another run")
            return result
        check_folder(out, resume=True, overwrite=is_done, advice=_ANOTHER_RUN)
        with open_folder(out, resume=True) as work:
            progress = _continue_or_begin(work / NOTE_FILE, job, plan, has_sites=has_sites)
            for change in progress.changes():
                notify(f"{change}: from the next round on")
            job = replace(progress.job, signature=note.sign(progress.job.signed_content))
            outcome = _outcome(note, plan, job, progress, work, observe, notify)
            if outcome["status"] == "refused":
                _restore_note(work / NOTE_FILE, progress)
            if outcome["status"] != "complete":
                raise FederationEndedError(str(outcome["message"]))
            result = led.write(work, job)
        # Last: without the note, a command that is started again would begin a new run.
        (out.resolve() / NOTE_FILE).unlink(missing_ok=True)
    return result


class _Progress(NamedTuple):
    """A new or an unfinished run.

    Attributes:
        jobs: ids of the jobs of the run so far.
        earlier: the order of the last job; None if there is none.
    """

    job: FederationJob
    jobs: tuple[str, ...] = ()
    earlier: FederationJob | None = None

    @property
    def is_changed(self) -> bool:
        """Whether the last job has another order."""
        return self.earlier is not None and self.earlier != self.job

    def changes(self) -> list[str]:
        """What is different from the order of the last job, for the lead."""
        if self.earlier is None:
            return []
        old, new = self.earlier, self.job
        members = (([site for site in new.sites if site not in old.sites], "takes part"),
                   ([site for site in old.sites if site not in new.sites], "leaves"))
        rules = [f"{name} is {getattr(new, name)} instead of {getattr(old, name)}" for name in _RULES
                 if getattr(new, name) != getattr(old, name)]
        return [*(f"{', '.join(names)} {verb}" for names, verb in members if names), *rules]


def _outcome(note: KitNote, plan: Plan, job: FederationJob, progress: _Progress, work: Path,
             observe: Observer, notify: Callable[[str], None]) -> Mapping[str, Any]:
    if note.engine == "flower":
        from resolvent.federation.engines.flower.programs import FlowerServer

        # A run of Flower has no number that outlives the command.
        _write_note(work / NOTE_FILE, progress.job, progress.jobs or [progress.job.run])
        return FlowerServer(note, plan, job, work, observe, notify).run()
    return Watchdog(note, job, progress.jobs, is_changed=progress.is_changed, work=work, observe=observe,
                    notify=notify, save=lambda jobs: _write_note(work / NOTE_FILE, progress.job, jobs)).run()


def new_run_name(plan: Plan) -> str:
    """A name for a run that no other run has."""
    name = folder_name(plan.name).replace(".", "-")[:40].strip("-_") or "run"
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def _continue_or_begin(path: Path, job: FederationJob, plan: Plan, *,
                       has_sites: bool) -> _Progress:
    """The folder's unfinished run, or a new run."""
    job = replace(job, policy=plan.policy.name)
    content = json.loads(path.read_text("utf-8")) if path.is_file() else None
    if content is None or (content["job"].get("policy") == job.policy and not plan.policy.continues_runs):
        job = job if job.refit is not None else replace(job, run=new_run_name(plan))
        _write_note(path, job, [])
        return _Progress(job)
    earlier = FederationJob.from_plain(content["job"])
    if (earlier.experiment, earlier.policy, earlier.refit) != (job.experiment, job.policy, job.refit):
        advice = "give --out another folder" if job.refit is None else "remove this folder"
        raise InputError(f"{path.parent} is an unfinished run of another experiment: continue it with its settings, or "
                         f"{advice}")
    job = replace(job, run=earlier.run, sites=earlier.sites, roster=earlier.roster).with_sites(
        job.sites if has_sites else earlier.sites)
    jobs = tuple(content["jobs"])
    return _Progress(job, jobs, earlier if jobs else None)


def _write_note(path: Path, job: FederationJob, jobs: Sequence[str]) -> None:
    write_text(path, json.dumps({"job": job.plain(), "jobs": list(jobs)}))


def _restore_note(path: Path, progress: _Progress) -> None:
    """After a refusal nothing is left of a new run, and an earlier run continues with the sites that it has."""
    if progress.earlier is None:
        path.unlink(missing_ok=True)
    else:
        _write_note(path, progress.earlier, json.loads(path.read_text("utf-8"))["jobs"])
