"""The processes that compute the arrays: a process keeps the devices and the precision with which it starts.

``python workers.py WORKER FOLDER [NAME ...]`` is one of them; ``run`` starts all.
"""

import importlib
import os
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from golden import arrays

WORKERS = ("device", "others", "devices", "processes")  # the longest first
OTHERS = ("messages", "files")


def run(only=()):
    """The arrays and texts of all parts, or of the named ones, by name; two workers run at a time."""
    names = [worker for worker in WORKERS
             if not only or ({*only} & {*OTHERS} if worker == "others" else {*only} - {*OTHERS})]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda worker: start(worker, Path(folder), only), names))
        values = {}
        for name in names:
            values |= arrays.read(Path(folder) / f"{name}.npz")
        return values


def start(worker, folder, only):
    """Run a worker to its end; ``processes`` are two, which JAX connects."""
    count = 2 if worker == "processes" else 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = [subprocess.Popen(
        [sys.executable, __file__, worker, folder, *only],
        env=os.environ | {"PJRT_NPROC": "1", "GOLDEN_PROCESS": f"127.0.0.1:{port} {count} {number}"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for number in range(count)]
    try:
        outputs = [process.communicate()[0] for process in started]
    finally:
        for process in started:
            process.kill()
    if any(process.returncode for process in started):
        raise RuntimeError(f"the worker {worker} failed:\n" + "\n".join(outputs))


def work(worker, folder, only):
    """Compute the arrays of one worker in this process, and write them."""
    importlib.import_module("conftest")  # sets the compiler's options, which JAX reads when it is imported
    import jax

    import compiled_programs

    is_first = True
    if worker == "devices":
        jax.config.update("jax_num_cpu_devices", 2)
    if worker == "processes":
        from resolvent.simulator.mesh import connect

        address, count, number = os.environ["GOLDEN_PROCESS"].split()
        connect(address, int(count), int(number))
        is_first = number == "0"
    elif root := compiled_programs.root():
        compiled_programs.enable(root)

    from golden import files, messages, trajectories

    values = {}
    if worker == "others":
        if not only or "files" in only:
            values |= files.record()
        if not only or "messages" in only:
            with jax.enable_x64(True):
                values |= messages.record()
    else:
        jax.config.update("jax_enable_x64", True)
        ways = trajectories.WAYS if worker == "device" else {worker: trajectories.SEVERAL_DEVICES}
        values |= trajectories.record(ways, only)
    if is_first:
        arrays.write(folder / f"{worker}.npz", values)


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), tuple(sys.argv[3:]))
