"""Writes the status of a run while it is served, in whatever engine or process."""

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from resolvent.data.files.atomic_files import write_text
from resolvent.federation.protocol.job import Observer
from resolvent.federation.protocol.run_status import RunStatus, SiteStatus
from resolvent.federation.server.waits import Watch, WatchedTransport

_HEARTBEAT = 10.0  # seconds between two writes without a change


class StatusFile(Watch):
    """The status file of a run. It is written at every event, and when the sites change for which the run waits.

    A status that cannot be written, such as on a full disk, does not stop a run.
    """

    def __init__(self, path: Path, run: str, sites: tuple[str, ...], observe: Observer) -> None:
        super().__init__()
        self._path, self._pass_on = path, observe
        self._transport: WatchedTransport | None = None
        self._status = RunStatus(run, started=time.time(), sites={site: SiteStatus() for site in sites})

    def follow(self, transport: WatchedTransport) -> None:
        """From now on, the status has the traffic of a transport, and what it waits for."""
        self._transport = transport

    def observe(self, event: Mapping[str, Any]) -> None:
        """Count an event, write the status, and pass the event on."""
        with self._lock:
            self._status.observe(event, time.time())
        self.refresh()
        self._pass_on(event)

    def end(self, state: str) -> None:
        """Write that the run has ended: ``complete``, ``refused`` or ``stopped``."""
        with self._lock:
            self._status.state = state
            self._status.wait_for({}, time.time())
        self._end.set()
        self.refresh()

    def refresh(self, *, only_changes: bool = False) -> None:
        """Write the status as it is now.

        Args:
            only_changes: whether nothing is written if only times and the memory have changed, for some seconds.
        """
        wait = self._transport.waiting() if self._transport is not None and not self._end.is_set() else None
        with self._lock:
            status, before = self._status, _content(self._status)
            if wait is not None:
                status.wait_for(wait, time.time())
            if only_changes and before == _content(status) and time.time() - status.updated < _HEARTBEAT:
                return
            if self._transport is not None:
                status.bytes_down, status.bytes_up = self._transport.bytes_down, self._transport.bytes_up
            status.memory, status.peak_memory = memory_of_process()
            status.updated = time.time()
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_text(self._path, json.dumps(status.plain()))

    @override
    def _look(self) -> None:
        self.refresh(only_changes=True)


def _content(status: RunStatus) -> str:
    """What a reader wants to know at once."""
    return json.dumps([status.waits_for, [[name, site.is_waited_for] for name, site in status.sites.items()]])


def memory_of_process() -> tuple[int, int]:
    """The memory of this process (resident set) now and its largest value, in bytes; 0 where it is unknown."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):  # not Linux
        return 0, peak
    size = pages * os.sysconf("SC_PAGE_SIZE")
    return size, max(size, peak)
