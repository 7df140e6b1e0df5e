"""What all contestants share: the workload's arrays, the timing, and the file of results.

Only NumPy is imported, because each contestant runs in a different virtual environment.
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
        offset: [N] first row of each party.
        length: [N] number of rows of each party.
        cohorts: [rounds, C] ids of the parties of each round; all contestants have the same cohorts.
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
        """The number of rounds before the timing, and of the timed rounds."""
        return int(self.facts["rounds"]) // 2

    def party(self, k: int) -> tuple[Array, Array]:
        """One party's inputs and labels, as views."""
        rows = slice(int(self.offset[k]), int(self.offset[k] + self.length[k]))
        return self.x[rows], self.y[rows]


class Meter:
    """The seconds of the parts of one run: import, data, first round, timed rounds.

    The second half of the rounds is timed, the same rounds for all contestants.
    """

    def __init__(self) -> None:
        self.begin = float(os.environ["BENCHMARK_SPAWNED"])
        self.seconds: dict[str, float] = {}
        self.last = self.begin

    def mark(self, part: str) -> None:
        """Note the seconds of a part: since the part before it, or since the start of the process."""
        end = time.monotonic()
        self.seconds[part] = end - self.last
        self.last = end

    def round_done(self, done: int, rounds: int) -> None:
        """Note that this number of rounds is done; their results must be ready."""
        if done == 1:
            self.mark("first_round")
        if done == rounds // 2:
            self.cpu, self.wall = tree_cpu(), time.monotonic()
        if done == rounds:
            timed = rounds - rounds // 2
            self.seconds["round"] = (time.monotonic() - self.wall) / timed
            self.seconds["round_cpu"] = (tree_cpu() - self.cpu) / timed

    def write(self, out: Path, model: dict[str, Array], **facts: Any) -> None:
        """Write the seconds to ``out``, and the last model to a file of the same name."""
        np.savez(out.with_suffix(".npz"), **model)
        status = Path("/proc/self/status").read_text()
        peak = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
        out.write_text(json.dumps({"seconds": self.seconds, "own_peak_mib": peak, "facts": facts}))


def arguments() -> argparse.Namespace:
    """A contestant's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path, help="folder of the workload")
    parser.add_argument("out", type=Path, help="JSON to write")
    parser.add_argument("--processes", type=int, default=1, help="number of processes, which divide the parties")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process")
    parser.add_argument("--seed", type=int, default=0, help="seed of a peer's minibatches")
    parser.add_argument("--devices", type=int, default=1, help="host devices of XLA in each process")
    return parser.parse_args()


def tree_cpu() -> float:
    """CPU seconds so far of this process and its descendants."""
    tick, parents, spent = os.sysconf("SC_CLK_TCK"), {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            pid = int(entry.name)
            parents[pid], spent[pid] = int(fields[1]), sum(map(int, fields[11:15])) / tick
    root = os.getpid()
    return time.process_time() + sum(spent[pid] for pid in below(root, parents) - {root} if pid in spent)


def below(root: int, parents: dict[int, int]) -> set[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    processes, todo = set(), [root]
    while todo:
        pid = todo.pop()
        processes.add(pid)
        todo += [c for c in children.get(pid, []) if c not in processes]
    return processes
