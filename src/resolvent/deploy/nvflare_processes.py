"""Starts, watches and ends the processes of NVIDIA FLARE: that of the server and that of a site."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from resolvent.deploy.provisioning import prepare_kit
from resolvent.errors import InputError

__all__ = ["EngineProcess", "KitNote", "kit_note", "running", "start_engine"]

_TERMINATION = 8.0  # seconds that the processes have after SIGTERM
_MODULES = {"server": ("nvflare.private.fed.app.server.server_train", "fed_server.json"),
            "site": ("nvflare.private.fed.app.client.client_train", "fed_client.json")}


class KitNote:
    """What a kit says about its participant.

    Attributes:
        kit: the kit's folder.
        kind: ``server``, ``site`` or ``person``.
        name: the participant's name.
        address: host and port of the server.

    Raises:
        InputError: the folder is not a kit.
    """

    def __init__(self, kit: Path) -> None:
        self.kit = kit.expanduser().resolve()
        startup = self.kit / "startup"
        files = {"fed_server.json": "server", "fed_client.json": "site", "fed_admin.json": "person"}
        self.kind = next((kind for file, kind in files.items() if (startup / file).is_file()), "")
        if not self.kind:
            raise InputError(f"{kit} is no kit: give --kit a folder that 'resolvent federation new' made")
        if self.kind == "person":
            admin = json.loads((startup / "fed_admin.json").read_text("utf-8"))["admin"]
            self.name, self.address = admin["username"], f"{admin['host']}:{admin['port']}"
            return
        configuration = json.loads((startup / _MODULES[self.kind][1]).read_text("utf-8"))
        self.address = configuration["servers"][0]["service"]["target"]
        self.name = "server" if self.kind == "server" else configuration["client"]["fqsn"]


def kit_note(kit: Path, kind: str) -> KitNote:
    """What a kit says about its participant.

    Raises:
        InputError: it is no kit, or that of another kind of participant.
    """
    note = KitNote(kit)
    titles = {"server": "the server", "site": "a site", "person": "a person"}
    if note.kind != kind:
        raise InputError(f"{kit} is the kit of {titles[note.kind]}, and this command needs that of {titles[kind]}")
    return note


class EngineProcess:
    """A running process of NVIDIA FLARE with its job processes.

    Attributes:
        log: the file with its output.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, output: IO[bytes]) -> None:
        self._process, self.log, self._output = process, log, output
        self._log_start = output.tell()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> bool:
        """Wait at most this time until the process ends; returns whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return not self.is_running

    def output(self) -> str:
        """What the process has written since its start."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode("utf-8", "replace")

    def wait_for(self, text: str, seconds: float) -> None:
        """Wait until the process has written a text.

        Raises:
            InputError: it has ended, or has not written it in this time.
        """
        end = time.monotonic() + seconds
        while text not in self.output():
            if not self.is_running or time.monotonic() > end:
                reason = "has ended" if not self.is_running else f"is not ready after {seconds:.0f} s"
                raise InputError(f"the process of NVIDIA FLARE {reason}; its last lines: {self.last_lines()}")
            time.sleep(0.1)

    def last_lines(self, count: int = 3) -> str:
        """The last lines of the output."""
        return " | ".join(self.output().strip().splitlines()[-count:]) or "(none)"

    def stop(self) -> None:
        """End the process and the processes that it has started, which are its process group."""
        for number, seconds in ((signal.SIGTERM, _TERMINATION), (signal.SIGKILL, _TERMINATION)):
            if not _group_exists(self.pid):
                break
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
            end = time.monotonic() + seconds
            while _group_exists(self.pid) and time.monotonic() < end:
                self._process.poll()
                time.sleep(0.05)
        self._process.wait(1)
        self._output.close()


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def start_engine(note: KitNote, allowed_classes: Sequence[str], environment: Mapping[str, str]) -> EngineProcess:
    """Start the server's process or a site's.

    Args:
        note: the participant of the kit.
        allowed_classes: full names of the classes that a job may name.
        environment: variables for the processes, in addition to those of this one.
    """
    prepare_kit(note.kit, allowed_classes)
    module, settings = _MODULES[note.kind]
    options = ["secure_train=true", "org=federation", "config_folder=config"]
    options += [] if note.kind == "server" else [f"uid={note.name}"]
    log = note.kit / "engine.log"
    output = log.open("ab")
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "resolvent.deploy.nvflare_start", str(os.getpid()), module, "-m", str(note.kit),
         "-s", settings, "--set", *options],
        stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=note.kit,
        env={**os.environ, "PJRT_NPROC": "1", **environment})
    return EngineProcess(process, log, output)


@contextlib.contextmanager
def running(process: EngineProcess) -> Iterator[EngineProcess]:
    """End a process when the block ends."""
    try:
        yield process
    finally:
        process.stop()
