"""Follows the jobs of a run over NVIDIA FLARE: a job that ends before the run is complete is started again."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from resolvent.errors import InputError
from resolvent.federation.engines.nvflare.lead import JobState, LeadSession, open_session
from resolvent.federation.protocol.events import Completion, Observer, Waiting, read_event
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import KitNote
from resolvent.federation.protocol.names import SERVER_CLASS, SITE_CLASS
from resolvent.federation.server.watch import FederationEndedError, Follower

_POLL = 0.5  # seconds between two queries of a job's state
_MAX_JOBS = 100  # of one command
# The engine's names of the states of a job: it waits for its start, it is being started, and it runs.
_SUBMITTED, _DISPATCHED, _RUNNING = "SUBMITTED", "DISPATCHED", "RUNNING"
_SILENT = 21.0  # seconds; a site of NVIDIA FLARE gives a sign every 10 s
_COMPLETED, _MAX_DOWNLOADS = "FINISHED:COMPLETED", 5  # attempts to download the results of a job
# What the engine's names of the state of a job that has ended mean.
_REASONS = {"FINISHED:ABORTED": "it was stopped",
            "FINISHED:ABNORMAL": "a process of the job was killed, did not start, or did not report in time",
            "FINISHED:EXECUTION_EXCEPTION": "a process of the job has failed or ended; its log says why",
            "FINISHED:FAILED_TO_RUN": "a participant did not start the job in time"}
_IDLE_CHECK, _MAX_IDLE_CHECKS = 5.0, 4  # seconds between two checks, and checks after which a job is started again


class Watchdog(Follower):
    """Follows a run through its jobs, until the server's program has written the outcome of the run.

    A job of an earlier command can have ended with an outcome that did not complete the run, such as a site that did
    not answer. Whoever calls the command again wants to continue: such an outcome counts only if this command has
    followed its job; otherwise the run continues with another job.

    Args:
        jobs: ids of the jobs of the run so far.
        is_changed: whether the last job has another order, and is replaced by one with this order.
    """

    def __init__(self, note: KitNote, job: FederationJob, jobs: Sequence[str], *, is_changed: bool, work: Path,
                 observe: Observer, notify: Callable[[str], None], save: Callable[[Sequence[str]], None]) -> None:
        super().__init__(observe, notify)
        self._note, self._job, self._work, self._save = note, job, work, save
        self._jobs, self._is_superseded = [*jobs], is_changed
        self._followed: set[str] = set()  # jobs that this command has started, or has seen at work
        self._started = 0  # number of jobs that this command has started
        self._observed = 0  # number of events of the current job that this command has observed
        self._last_check, self._idle_checks = time.monotonic(), 0
        self._failed_downloads = 0
        self._signs: dict[str, tuple[float | None, float]] = {}  # site -> its last sign, and when it was new here
        self._delay = Waiting("job")

    @override
    def _connect(self) -> AbstractContextManager[LeadSession]:
        return open_session(self._note)

    @override
    def _follow(self, session: LeadSession) -> Mapping[str, Any] | None:
        """Follow the current job, or start one; returns the outcome of the run, or None if another job was started."""
        if self._is_superseded:
            self._end_job(session)
        if not self._jobs:
            self._start_job(session)
        state = self._follow_job(session)
        self._watch.expect(Waiting("results"))
        outcome = self._fetch(session, state) if state.is_done else None
        if outcome is not None and (outcome["status"] == "complete" or self._jobs[-1] in self._followed):
            for event in outcome.get("events", [])[self._observed:]:
                self._watch.observe(read_event(event))
            return outcome
        if outcome is not None:
            self._notify(f"the run has stopped before: {outcome['message']}")
            self._notify("it continues from the server's checkpoint")
        else:
            self._notify(f"the job has ended before the run ({state.text}{_reason(state.text)}): it is started again, "
                         "and continues from the server's checkpoint")
        self._start_job(session)
        return None

    def _follow_job(self, session: LeadSession) -> JobState:
        """Follow the current job to its end; returns its last state."""
        job = self._jobs[-1]
        while True:
            state = session.state(job)
            if state.is_known and not state.is_done:
                self._followed.add(job)
            events, waiting = session.progress(job, self._observed)
            self._observed += len(events)
            wait = waiting or replace(self._delay, state=state.text)
            self._watch.expect(wait)
            for event in events:
                self._watch.observe(event)
            is_complete = any(isinstance(event, Completion) for event in events)
            if state.is_done or not state.is_known or self._end_if_idle(session, state.text):
                return state
            time.sleep(_POLL)
            while is_complete and self._is_at_work(session):  # it no longer answers ``progress``
                time.sleep(_POLL)

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
            if self._failed_downloads >= _MAX_DOWNLOADS and self._jobs[-1] not in self._followed:
                return None  # an earlier command has ended here: the server's checkpoint has all that is needed
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
        if time.monotonic() - self._last_check < _IDLE_CHECK:
            return False
        self._last_check = time.monotonic()
        self._delay = self._reason_of_delay(session) if state in (_SUBMITTED, _DISPATCHED) else Waiting("job")
        if state not in (_DISPATCHED, _RUNNING):
            return False
        is_lost = self._jobs[-1] not in session.running_jobs()
        idle = {"server"} if is_lost else session.idle_sites() & {*self._job.sites} if state == _RUNNING else set()
        self._idle_checks = self._idle_checks + 1 if idle else 0
        if self._idle_checks < _MAX_IDLE_CHECKS:
            return False
        self._idle_checks = 0
        self._notify(f"{', '.join(sorted(idle))} started again without the job, which ends now")
        session.abort(self._jobs[-1])
        return is_lost

    def _reason_of_delay(self, session: LeadSession) -> Waiting:
        """Why the job has not begun: sites that give no sign, or another job before it.

        Raises:
            FederationEndedError: a site has given no sign for the time that a reply may take.
        """
        now, signs = time.monotonic(), session.last_signs()
        for site in self._job.sites:
            if site not in self._signs or self._signs[site][0] != signs.get(site):
                self._signs[site] = signs.get(site), now
        silent = {site: now - since for site, (_, since) in self._signs.items() if now - since > _SILENT}
        if silent and (longest := max(silent.values())) > self._job.deadline:
            raise FederationEndedError(f"{', '.join(silent)} gave no sign for {longest:.0f} s: the machine or the "
                                       "process is stopped, or cut off. Start resolvent site start there again, then "
                                       "run the command again to continue, or leave the site out with --sites")
        return Waiting("job", tuple(sorted(silent)), is_queued=bool(session.running_jobs() - {*self._jobs}))

    def _end_job(self, session: LeadSession) -> None:
        """End the job with the earlier order; the next one continues from the server's checkpoint."""
        job = self._jobs[-1]
        self._watch.expect(Waiting("end"))
        if not session.state(job).is_done:
            session.abort(job)
            while job in session.running_jobs() and not session.state(job).is_done:
                time.sleep(_POLL)
        self._is_superseded = False

    def _start_job(self, session: LeadSession) -> None:
        """Start a job of the run when all sites are connected."""
        if self._started >= _MAX_JOBS:
            raise FederationEndedError(f"the job was stopped {_MAX_JOBS} times: the logs of the server and of the "
                                       "sites say why")
        self._await_sites(self._job.sites, session.connected_sites)
        try:
            job = session.submit(self._job.run, self._job.plain(), SERVER_CLASS, SITE_CLASS)
        except InputError as error:  # the person has no right; trying again would not help
            raise FederationEndedError(str(error)) from error
        self._jobs.append(job)
        self._followed.add(job)
        self._started, self._failed_downloads, self._observed = self._started + 1, 0, 0
        self._save(self._jobs)


def _reason(state: str) -> str:
    return f": {_REASONS[state]}" if state in _REASONS else ""
