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

from resolvent.data.atomic_files import write_text
from resolvent.data.folder_lock import locked
from resolvent.data.tables import natural_order
from resolvent.deploy.kits import KitNote
from resolvent.deploy.nvflare_lead import JobState, LeadSession, open_session
from resolvent.errors import InputError, alternatives, quote
from resolvent.study.checks import folder_name
from resolvent.study.federation_experiment import FederatedExperiment
from resolvent.study.federation_names import SERVER_CLASS, SITE_CLASS
from resolvent.study.federation_server import FederationJob, Observer
from resolvent.study.run_folder import check_folder, open_folder
from resolvent.study.summary import read_summary

__all__ = ["FederationEndedError", "federate", "read_sites", "write_sites"]

_SITES_FILE, _NOTE_FILE = "federation.json", "job.json"
_POLL, _RECONNECT = 0.5, 2.0  # seconds between two queries of a job's state, and between two attempts to connect
_PATIENCE = 600.0  # seconds without the server or a site, after which the command gives up
_MAX_JOBS = 100
_DISPATCHED, _RUNNING = "DISPATCHED", "RUNNING"  # the engine's names of the states of a job that has been started
_COMPLETED, _MAX_DOWNLOADS = "FINISHED:COMPLETED", 5  # attempts to download the results of a job
# What the engine's names of the state of a job that has ended mean.
_REASONS = {"FINISHED:ABORTED": "it was stopped",
            "FINISHED:ABNORMAL": "a process of the job was killed, did not start, or did not report in time",
            "FINISHED:EXECUTION_EXCEPTION": "a process of the job has failed or ended; its log says why",
            "FINISHED:FAILED_TO_RUN": "a participant did not start the job in time"}
_IDLE_CHECK, _MAX_IDLE_CHECKS = 5.0, 4  # seconds between two checks, and checks after which a job is started again


class FederationEndedError(InputError):
    """The run has not been completed; the message says why, and how to continue."""


def write_sites(kit: Path, name: str, sites: Sequence[str]) -> None:
    """Write the names of the federation's sites into a kit."""
    write_text(kit / _SITES_FILE, json.dumps({"federation": name, "sites": sorted(sites, key=natural_order)}))


def read_sites(kit: Path, chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """The sites of a federation in the order of the parties.

    Args:
        kit: the lead's kit.
        chosen: names of sites; only these are returned. Default: all sites.

    Raises:
        InputError: the kit has no list of sites, or a chosen name is not in it.
    """
    try:
        sites = tuple(json.loads((kit / _SITES_FILE).read_text("utf-8"))["sites"])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{kit} does not say which sites the federation has: {_SITES_FILE} is missing or damaged: use "
                         "a kit that 'resolvent federation new' made") from error
    for name in chosen:
        if name not in sites:
            raise InputError(f"--sites: there is no site {quote(name)}{alternatives(name, sites)}")
    return tuple(name for name in sites if not chosen or name in chosen)


def federate(note: KitNote, experiment: FederatedExperiment, out: Path, job: FederationJob, observe: Observer, *,
             notify: Callable[[str], None], has_sites: bool = False) -> dict[str, Any]:
    """Run an experiment in a federation and write the run folder; an interrupted run is resumed.

    Args:
        note: the participant of the lead's kit; with Flower, that of the server.
        experiment: the experiment.
        out: the run folder.
        job: sites and rules. The name of the run is that of an unfinished run in the folder, or a new one.
        observe: a function that is called with the events of the run.
        notify: a function that is called with a message about the job.
        has_sites: whether the user has chosen the sites. Then an unfinished run continues with these sites from its
            next round on; otherwise it continues with the sites that it has.

    Returns:
        The summary of the run.

    Raises:
        InputError: the folder is in use, or the server cannot be reached.
        FederationEndedError: the sites refuse, or too few of them have answered.
    """
    with locked(out):
        check_folder(out, resume=True, overwrite=False)
        with open_folder(out, resume=True) as work:
            progress = _continue_or_begin(work / _NOTE_FILE, job, experiment, has_sites=has_sites)
            if progress.joined or progress.left:
                changes = [f"{', '.join(names)} {verb}" for names, verb in ((progress.joined, "takes part"),
                                                                             (progress.left, "leaves")) if names]
                notify(f"{'; '.join(changes)}: from the next round on")
            is_new = not progress.jobs
            outcome = _outcome(note, experiment, progress, work, observe, notify)
            if outcome["status"] == "refused":
                _restore_note(work / _NOTE_FILE, progress, is_new=is_new)
            if outcome["status"] != "complete":
                raise FederationEndedError(str(outcome["message"]))
            from resolvent.study.report import write_report  # imports matplotlib and jinja2, which take long

            write_report(work)
            summary = read_summary(work)
        # Last: without the note, a command that is started again would begin a new run.
        (out.resolve() / _NOTE_FILE).unlink(missing_ok=True)
    return summary


class _Progress(NamedTuple):
    """A new or an unfinished run.

    Attributes:
        job: the order to run it.
        jobs: ids of the jobs of the run so far.
        joined: sites that were not in the last job.
        left: sites that were in the last job only.
        earlier_sites: the sites of the last job.
    """

    job: FederationJob
    jobs: list[str]
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    earlier_sites: tuple[str, ...] = ()


def _outcome(note: KitNote, experiment: FederatedExperiment, progress: _Progress, work: Path, observe: Observer,
             notify: Callable[[str], None]) -> Mapping[str, Any]:
    if note.engine == "flower":
        from resolvent.study.federation_flower import FlowerServer

        if not progress.jobs:
            progress.jobs.append(progress.job.run)  # a run of Flower has no number that outlives the command
        _write_note(work / _NOTE_FILE, progress.job, progress.jobs)
        return FlowerServer(note, experiment, progress.job, work, observe, notify).run()
    return _Watchdog(note, progress, work, observe, notify).run()


def new_run_name(experiment: FederatedExperiment) -> str:
    """A name for a run that no other run has."""
    name = folder_name(experiment.file.name).replace(".", "-")[:40].strip("-_") or "run"
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def _continue_or_begin(path: Path, job: FederationJob, experiment: FederatedExperiment, *,
                       has_sites: bool) -> _Progress:
    """The folder's unfinished run, or a new run. The participants of an unfinished rehearsal do not exist any more."""
    content = json.loads(path.read_text("utf-8")) if path.is_file() else None
    if content is None or (job.rehearsal and content["job"].get("rehearsal")):
        job = replace(job, run=new_run_name(experiment))
        _write_note(path, job, [])
        return _Progress(job, [])
    earlier = FederationJob.from_plain(content["job"])
    if (earlier.experiment, earlier.rehearsal) != (job.experiment, job.rehearsal):
        raise InputError(f"{path.parent} is an unfinished run of another experiment: continue it with its settings, or "
                         "give --out another folder")
    job = replace(job, run=earlier.run, sites=job.sites if has_sites else earlier.sites)
    return _Progress(job, list(content["jobs"]), tuple(site for site in job.sites if site not in earlier.sites),
                     tuple(site for site in earlier.sites if site not in job.sites), earlier.sites)


def _write_note(path: Path, job: FederationJob, jobs: Sequence[str]) -> None:
    write_text(path, json.dumps({"job": job.plain(), "jobs": list(jobs)}))


def _restore_note(path: Path, progress: _Progress, *, is_new: bool) -> None:
    """After a refusal nothing is left of a new run, and an earlier run continues with the sites that it has."""
    if is_new:
        path.unlink(missing_ok=True)
    else:
        _write_note(path, replace(progress.job, sites=progress.earlier_sites), progress.jobs)


class _Watchdog:
    """Follows a run through its jobs, until the server's program has written an outcome."""

    def __init__(self, note: KitNote, progress: _Progress, work: Path, observe: Observer,
                 notify: Callable[[str], None]) -> None:
        self._note, self._job, self._jobs, self._work, self._observe, self._notify = (
            note, progress.job, progress.jobs, work, observe, notify)
        self._has_other_sites = bool(progress.jobs and (progress.joined or progress.left))
        self._last_check, self._idle_checks = time.monotonic(), 0
        self._failed_downloads = 0
        self._quiet_since = time.monotonic()

    def run(self) -> Mapping[str, Any]:
        """The outcome of the run."""
        while True:
            try:
                with open_session(self._note) as session:
                    self._quiet_since = time.monotonic()
                    while True:
                        outcome = self._follow(session)
                        if outcome is not None:
                            return outcome
            except FederationEndedError:
                raise
            except Exception as error:  # the server has ended, or the network
                self._wait(f"the connection to the server is lost ({str(error)[:200]})")

    def _follow(self, session: LeadSession) -> Mapping[str, Any] | None:
        """Follow the current job, or start one; returns the outcome, or None if the job was stopped."""
        if self._has_other_sites:
            self._end_job(session)
        if not self._jobs:
            self._await_sites(session)
            self._submit(session)
        number = 0
        while True:
            state = session.state(self._jobs[-1])
            events, number = session.progress(self._jobs[-1], number)
            for event in events:
                self._observe(event)
            is_complete = any(event.get("event") == "complete" for event in events)
            if state.is_done or not state.is_known or self._end_if_idle(session, state.text):
                break
            time.sleep(_POLL)
            while is_complete and self._is_at_work(session):  # it no longer answers ``progress``
                time.sleep(_POLL)
        outcome = self._fetch(session, state) if state.is_done else None
        if outcome is None:
            if len(self._jobs) >= _MAX_JOBS:
                raise FederationEndedError(f"the job was stopped {_MAX_JOBS} times: the logs of the server and of the "
                                           "sites say why")
            self._notify(f"the job has ended before the run ({state.text}{_reason(state.text)}): it is started again, "
                         "and continues from the server's checkpoint")
            self._await_sites(session)
            self._submit(session)
            return None
        for event in outcome.get("events", [])[number:]:
            self._observe(event)
        return outcome

    def _is_at_work(self, session: LeadSession) -> bool:
        state = session.state(self._jobs[-1])
        return state.is_known and not state.is_done

    def _fetch(self, session: LeadSession, state: JobState) -> Mapping[str, Any] | None:
        """The outcome of a job that has ended; None if it has none. A lost connection is tried again."""
        try:
            outcome = session.fetch(self._jobs[-1], self._work)
        except InputError as error:
            if state.text != _COMPLETED:  # such as a job that was never started
                return None
            self._failed_downloads += 1
            if self._failed_downloads >= _MAX_DOWNLOADS:
                raise FederationEndedError(str(error)) from error
            raise
        self._failed_downloads = 0
        return outcome

    def _end_if_idle(self, session: LeadSession, state: str) -> bool:
        """End the job if the server or a site has not run it for some time, because its engine was started again.

        NVIDIA FLARE notices neither. The server would wait for the site until the deadline, and a job that the server
        has lost keeps its state for ever.

        Returns:
            Whether the job has ended although its state does not say so.
        """
        if state not in (_DISPATCHED, _RUNNING) or time.monotonic() - self._last_check < _IDLE_CHECK:
            return False
        self._last_check = time.monotonic()
        is_lost = self._jobs[-1] not in session.running_jobs()
        idle = {"server"} if is_lost else session.idle_sites() & {*self._job.sites} if state == _RUNNING else set()
        self._idle_checks = self._idle_checks + 1 if idle else 0
        if self._idle_checks < _MAX_IDLE_CHECKS:
            return False
        self._idle_checks = 0
        self._notify(f"{', '.join(sorted(idle))} started again without the job, which ends now")
        session.abort(self._jobs[-1])
        return is_lost

    def _end_job(self, session: LeadSession) -> None:
        """End the job with the earlier sites; the next one continues from the server's checkpoint."""
        job = self._jobs[-1]
        if not session.state(job).is_done:
            session.abort(job)
            while job in session.running_jobs() and not session.state(job).is_done:
                time.sleep(_POLL)
        self._has_other_sites = False

    def _submit(self, session: LeadSession) -> None:
        try:
            job = session.submit(self._job.run, self._job.plain(), SERVER_CLASS, SITE_CLASS)
        except InputError as error:  # the person has no right; trying again would not help
            raise FederationEndedError(str(error)) from error
        self._jobs.append(job)
        _write_note(self._work / _NOTE_FILE, self._job, self._jobs)

    def _await_sites(self, session: LeadSession) -> None:
        """Wait until all sites are connected."""
        reported: set[str] = set()
        while missing := {*self._job.sites} - session.connected_sites():
            if missing != reported:
                self._notify(f"waiting for {', '.join(sorted(missing))}")
                reported = missing
            if time.monotonic() - self._quiet_since > _PATIENCE:
                raise FederationEndedError(f"{', '.join(sorted(missing))} did not join within {_PATIENCE:.0f} s: start "
                                           "them with resolvent party start, then run the command again to continue")
            time.sleep(_POLL)
        self._quiet_since = time.monotonic()

    def _wait(self, reason: str) -> None:
        if time.monotonic() - self._quiet_since > _PATIENCE:
            raise FederationEndedError(f"{reason}, for {_PATIENCE:.0f} s: run the command again to continue")
        self._notify(f"{reason}: trying again")
        time.sleep(_RECONNECT)


def _reason(state: str) -> str:
    return f": {_REASONS[state]}" if state in _REASONS else ""
