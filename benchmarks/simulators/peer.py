"""What every contestant shares, ours too: the workload's arrays, the marks in time, and the file of results.

Nothing but NumPy is imported here: each contestant runs in a virtual environment of its own.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Meter", "Work", "arguments", "tree_cpu"]

Array = NDArray[Any]


class Work:
    """A workload: every party's training samples, packed, the cohorts of all rounds and the first model.

    Attributes:
        x: [total, ...] inputs.
        y: [total] class numbers.
        offset: [N] the parties' first rows.
        length: [N] how many rows each has.
        cohorts: [rounds, C] who takes part; all contestants have the same cohorts.
        first: the first model, by name of the parameter.
        facts: ``model``, ``classes``, ``learning_rate``, ``batch``, ``epochs``, ``mu``, ``rounds`` (twice ``half``).
    """

    def __init__(self, folder: Path) -> None:
        self.facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
        self.x, self.y, self.offset, self.length, self.cohorts = (
            np.load(folder / f"{name}.npy") for name in ("x", "y", "offset", "length", "cohorts"))
        with np.load(folder / "first.npz") as file:
            self.first: dict[str, Array] = dict(file)

    @property
    def half(self) -> int:
        """Rounds before the clock starts, and as many rounds are timed."""
        return int(self.facts["rounds"]) // 2

    def party(self, k: int) -> tuple[Array, Array]:
        """One party's inputs and labels, as views."""
        rows = slice(int(self.offset[k]), int(self.offset[k] + self.length[k]))
        return self.x[rows], self.y[rows]


class Meter:
    """The marks of one run: when the framework was imported, the data loaded, the first round and the timed ones done.

    Steady state is the second half of the rounds, the same rounds for everybody.
    """

    def __init__(self) -> None:
        self.begin = float(os.environ["BENCHMARK_SPAWNED"])
        self.seconds: dict[str, float] = {}
        self.last = self.begin

    def mark(self, what: str) -> None:
        """Seconds since the mark before (the first: since the process was started)."""
        now = time.monotonic()
        self.seconds[what] = now - self.last
        self.last = now

    def round_done(self, done: int, rounds: int) -> None:
        """So many rounds are done; their results must be ready."""
        if done == 1:
            self.mark("first_round")
        if done == rounds // 2:
            self.cpu, self.wall = tree_cpu(), time.monotonic()
        if done == rounds:
            timed = rounds - rounds // 2
            self.seconds["round"] = (time.monotonic() - self.wall) / timed
            self.seconds["round_cpu"] = (tree_cpu() - self.cpu) / timed

    def write(self, out: Path, model: dict[str, Array], **facts: Any) -> None:
        """The seconds as ``out``, the last model beside it."""
        np.savez(out.with_suffix(".npz"), **model)
        status = Path("/proc/self/status").read_text()
        peak = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
        out.write_text(json.dumps({"seconds": self.seconds, "own_peak_mib": peak, "facts": facts}))


def arguments() -> argparse.Namespace:
    """A contestant's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path, help="folder of the workload")
    parser.add_argument("out", type=Path, help="JSON to write")
    parser.add_argument("--processes", type=int, default=1, help="that share the parties")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--seed", type=int, default=0, help="of the minibatches of a peer")
    parser.add_argument("--devices", type=int, default=1, help="host devices of XLA in each process")
    return parser.parse_args()


def tree_cpu() -> float:
    """CPU seconds so far of this process and everything below it."""
    tick, parents, spent = os.sysconf("SC_CLK_TCK"), {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            pid = int(entry.name)
            parents[pid], spent[pid] = int(fields[1]), sum(map(int, fields[11:15])) / tick
    here = os.getpid()
    return time.process_time() + sum(spent[pid] for pid in below(here, parents) - {here} if pid in spent)


def below(root: int, parents: dict[int, int]) -> set[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found, todo = set(), [root]
    while todo:
        pid = todo.pop()
        found.add(pid)
        todo += [c for c in children.get(pid, []) if c not in found]
    return found
