"""The lead's connection to the server of NVIDIA FLARE: it starts jobs, follows them, and fetches their results."""

import contextlib
import io
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from resolvent.errors import InputError, shorten
from resolvent.federation.engines.nvflare.jobs import OUTCOME_FILE, PROGRESS_TOPIC, RESULTS_FOLDER, write_job
from resolvent.federation.protocol.events import Event, Waiting, read_event
from resolvent.federation.protocol.kits import KitNote

_CONNECT_SECONDS = 15.0
_NO_JOBS = "no_jobs"  # a site's state in the engine's report


class JobState(NamedTuple):
    """The state of a job.

    Attributes:
        text: the engine's name of the state, such as ``RUNNING``.
        is_done: whether the job has ended, for any reason.
        is_known: whether the server has the job; it has none of another installation, or of a folder that was replaced.
    """

    text: str
    is_done: bool
    is_known: bool = True


class LeadSession:
    """A connection to the server as the lead."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def connected_sites(self) -> set[str]:
        """The names of the sites that are connected."""
        return {client.name for client in self._session.get_system_info().client_info}

    def last_signs(self) -> dict[str, float]:
        """Connected site -> the time of its last sign, by the server's clock."""
        return {client.name: client.last_connect_time for client in self._session.get_system_info().client_info}

    def submit(self, name: str, job: Mapping[str, Any], server_class: str, site_class: str) -> str:
        """Start a job, see ``write_job``; returns its id."""
        from nvflare.fuel.flare_api.api_spec import AuthorizationError, InternalError, JobNotFound

        with tempfile.TemporaryDirectory() as folder:
            path = write_job(Path(folder), name, job, server_class, site_class)
            try:
                return str(self._session.submit_job(str(path)))
            except (AuthorizationError, InternalError, JobNotFound) as error:
                raise InputError(f"the server refuses the job: {shorten(error)}: only the lead of consortium.yaml may "
                                 "start an experiment") from error

    def state(self, job: str) -> JobState:
        """The state of a job, as the server reports it."""
        from nvflare.fuel.flare_api.api_spec import JobNotFound

        try:
            text = str(self._session.get_job_status(job))
        except JobNotFound:
            return JobState("the server does not have it", is_done=False, is_known=False)
        return JobState(text, text.startswith("FINISHED"))

    def running_jobs(self) -> set[str]:
        """The ids of the jobs that the server runs. One that it has lost at a restart keeps the state ``RUNNING``."""
        return {str(job.job_id) for job in self._session.get_system_info().job_info}

    def idle_sites(self) -> set[str]:
        """The connected sites that run no job; empty if a site does not say it, such as one that is frozen."""
        from nvflare.fuel.flare_api.api_spec import NoConnection

        try:
            entries = self._session.get_client_job_status() or []
        except NoConnection:  # the server waits longer for a site than this connection waits for the server
            return set()
        return {str(entry["client_name"]) for entry in entries if entry.get("status") == _NO_JOBS}

    def progress(self, job: str, since: int) -> tuple[list[Event], Waiting | None]:
        """The events of a running job from number ``since`` on, and what it waits for, if it says so."""
        try:
            answer = self._session.do_app_command(job, PROGRESS_TOPIC, {"since": since})
        except Exception:  # the job is not running yet, or any more: its state says so
            return [], None
        waits = [wait for event in answer.get("waiting", []) if isinstance(wait := read_event(event), Waiting)]
        return [read_event(event) for event in answer.get("events", [])], next(iter(waits), None)

    def abort(self, job: str) -> None:
        """End a running job at the server and at all sites."""
        with contextlib.suppress(Exception):
            self._session.abort_job(job)

    def fetch(self, job: str, target: Path) -> dict[str, Any] | None:
        """Download the results of a job that has ended.

        Returns:
            The outcome that the server's program wrote; None if the job was stopped before that.
        """
        with tempfile.TemporaryDirectory() as folder:
            try:
                location = self._session.download_job_result(job, folder)
            except Exception as error:
                raise InputError(f"the results of job {job} cannot be downloaded: {shorten(error)}: run the command "
                                 "again") from error
            sources = [p for p in Path(location).rglob(RESULTS_FOLDER) if p.is_dir()]
            outcome = next((p / OUTCOME_FILE for p in sources if (p / OUTCOME_FILE).is_file()), None)
            if outcome is None:
                return None
            shutil.copytree(outcome.parent, target, dirs_exist_ok=True)
            content: dict[str, Any] = json.loads(outcome.read_text("utf-8"))
            return content


@contextlib.contextmanager
def open_session(note: KitNote) -> Iterator[LeadSession]:
    """Connect to the server with the certificate of a person."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    # What the engine logs about a lost connection would be among the command's messages, which say the same.
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            session = new_secure_session(note.name, str(note.kit), timeout=_CONNECT_SECONDS)
    except Exception as error:
        raise InputError(f"no connection to the server at {note.address}: {shorten(error)}: is the server running, and "
                         "the kit one of its federation?") from error
    try:
        yield LeadSession(session)
    finally:
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            session.close()
