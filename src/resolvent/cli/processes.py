"""Several processes of one command on this machine: they are started, watched and ended together.

Each process runs the same command, and gets its number from the environment. The first one writes files and prints;
what the others print is shown if they fail.
"""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import IO, Literal, NamedTuple

from resolvent.cli.exit_codes import NO_RESOURCE
from resolvent.cli.output import PROCESS_VARIABLE, is_started_process, print_error

_COMMAND = (sys.executable, "-P", "-m", "resolvent.cli")
_POLL_SECONDS = 0.05
_END_SECONDS = 10.0  # until a process that was asked to end is killed; it may be writing a checkpoint
_PATIENCE = 20.0  # seconds until a process of a cluster says that it waits for the others
_NUMBERS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK")  # variables with the number of a process of a cluster
_NO_CLUSTER = "coordinator_address should be defined"  # what JAX says then
_SHOWN_BYTES = 4000  # bytes that are shown of the output of a process that failed


class _Process(NamedTuple):
    number: int
    popen: "subprocess.Popen[bytes]"
    output: IO[bytes] | None


def connect_processes(processes: int | Literal["cluster"]) -> None:
    """Connect this process with the others of its run.

    Args:
        processes: ``cluster`` if Slurm, Open MPI or another system that JAX detects has started this process.
    """
    from resolvent.errors import InputError
    from resolvent.simulator.mesh import connect, is_connected

    if is_connected():
        return
    try:
        if processes == "cluster":
            with _say_if_waiting():
                connect()
            return
        number, count, address = os.environ[PROCESS_VARIABLE].split("/")
        threading.Thread(target=_end_with_parent, daemon=True).start()
        connect(address, int(count), int(number))
    except (ValueError, RuntimeError) as error:
        cause = " ".join(str(error).split()).rstrip(".")
        if _NO_CLUSTER in cause:
            cause = "neither Slurm nor Open MPI nor another system that JAX detects has started this process"
        raise InputError(f"--processes {processes}: the processes cannot connect: {cause}. On a "
                         "cluster, start the command with srun or mpirun; on one machine, give a number") from error


@contextlib.contextmanager
def _say_if_waiting() -> Iterator[None]:
    """Print what to check if the block takes long: if a process is missing, JAX aborts the others without a cause."""
    number = next((os.environ[name] for name in _NUMBERS if name in os.environ), "of unknown number")
    message = (f"process {number} has waited {_PATIENCE:g} seconds for the other processes of the run: check that all "
               "of them were started and can reach the first one; JAX aborts this process after 300 seconds")
    timer = threading.Timer(_PATIENCE, lambda: print(message, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def has_others() -> bool:
    """Whether this process is connected with others, for whose end JAX waits at the exit."""
    jax = sys.modules.get("jax")
    return is_started_process() or (jax is not None and jax.distributed.is_initialized())


def run_in_processes(count: int) -> int:
    """Run the command of this process in ``count`` processes. Returns the exit code.

    If one of them fails, the others are ended.
    """
    from resolvent.errors import InputError

    if count < 1:
        raise InputError(f"--processes {count} must be at least 1")
    with _started(count) as processes:
        failed = _wait(processes)
        if failed is None:
            return 0
        code = failed.popen.returncode
        if failed.number > 0 or code < 0:
            _report(failed, count)
        return NO_RESOURCE if code < 0 else code


@contextlib.contextmanager
def _started(count: int) -> Iterator[list[_Process]]:
    """The processes, which are ended with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    processes: list[_Process] = []
    try:
        for number in range(count):
            output = tempfile.TemporaryFile() if number else None  # noqa: SIM115 - closed below
            popen = subprocess.Popen(
                [*_COMMAND, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=output,
                stderr=output and subprocess.STDOUT, start_new_session=True,
                env=os.environ | {PROCESS_VARIABLE: f"{number}/{count}/{address}"})
            processes.append(_Process(number, popen, output))
        yield processes
    finally:
        _end(processes)
        for process in processes:
            if process.output is not None:
                process.output.close()


def _wait(processes: list[_Process]) -> _Process | None:
    """Wait until all processes have ended, or one has failed; that one is returned."""
    while True:
        ended = [process for process in processes if process.popen.poll() is not None]
        failed = [process for process in ended if process.popen.returncode]
        if failed:  # one that a signal has ended is the cause of what others report
            return min(failed, key=lambda process: (process.popen.returncode > 0, process.number))
        if len(ended) == len(processes):
            return None
        time.sleep(_POLL_SECONDS)


def _end(processes: list[_Process]) -> None:
    """Ask the processes to end, and kill those that do not."""
    deadline = time.monotonic() + _END_SECONDS
    for process in processes:
        if process.popen.poll() is None:
            process.popen.terminate()
    for process in processes:
        try:
            process.popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()
        assert process.popen.stdin is not None
        process.popen.stdin.close()


def _report(failed: _Process, count: int) -> None:
    if failed.output is not None:
        size = failed.output.seek(0, os.SEEK_END)
        failed.output.seek(max(0, size - _SHOWN_BYTES))
        sys.stderr.write(failed.output.read().decode(errors="replace"))
    code = failed.popen.returncode
    cause = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"
    command = shlex.join([*sys.argv[1:], *([] if "--resume" in sys.argv else ["--resume"])])
    print_error(f"process {failed.number + 1} of {count} {cause}; the others were stopped. Continue, with any number "
                f"of processes: resolvent {command}")


def _end_with_parent() -> None:
    """End this process when the one that has started it ends, whose end closes the pipe."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
