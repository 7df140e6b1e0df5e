"""Run every contestant on every workload in alternation, and write the measurements."""

import ctypes
import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.records import ALLOCATOR
from contestants import CONTESTANTS, Contestant, clean, environment, pins, replaced_pins
from peer import below
from workloads import WORKLOADS, cache, prepare, quality

__all__ = ["race"]

FOLDER = Path(__file__).parent
_MEDIANS = ("round", "round_cpu", "first_round", "import", "data")
_LIMIT = 1800.0  # seconds that one run may take
_SUBREAPER = 36  # prctl: orphans below this process become its children, so that nothing escapes being measured


def race(out: Path, works: Sequence[str] | None, labels: Sequence[str] | None, repeats: int, *, quick: bool) -> None:
    """Measure and write.

    Args:
        out: the JSON file; rows of other contestants and workloads stay in it.
        works: names of workloads; None: all.
        labels: beginnings of contestants' labels; None: all.
        repeats: number of runs of each.
        quick: two rounds of each, once, to a file in the cache folder.
    """
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    out, repeats = (folder / "quick.json", 1) if quick else (out, repeats)
    chosen = [c for c in CONTESTANTS
              if not labels or any(c.label.lower().startswith(label.lower()) for label in labels)]
    check_machine(out)
    pythons = {name: environment(name, folder) for name in dict.fromkeys(c.environment_name for c in chosen) if name}
    names = list(works or WORKLOADS)
    folders = {name: prepare(name, folder, 1 if quick else None) for name in names}
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for repeat in range(repeats):
        for name in names:
            for contestant in chosen:
                if contestant.only and name not in contestant.only:
                    continue
                measured = run(contestant, folders[name], folder, pythons, repeat)
                runs.setdefault((name, contestant.label), []).append(measured)
                print(f"{repeat + 1}/{repeats} {name} {contestant.label:28} {_line(measured)}", flush=True)
    record = json.loads(out.read_text()) if out.exists() else {"rows": []}
    rows = {(r["workload"], r["name"], r["setting"]): r for r in record["rows"]}
    for (name, label), measured in runs.items():
        contestant = next(c for c in chosen if c.label == label)
        rows[name, contestant.name, contestant.setting] = {
            "workload": name, "name": contestant.name, "setting": contestant.setting, **_row(measured)}
    order = {c.label: i for i, c in enumerate(CONTESTANTS)}
    ordered = sorted(rows.values(), key=lambda r: (r["workload"], order.get(f"{r['name']}, {r['setting']}", 99)))
    record = {"command": "python -m benchmarks.simulators " + shlex.join(sys.argv[1:]), "machine": machine(),
              "ceilings": ceilings(folder), "repeats": repeats,
              "workloads": dict(sorted((record.get("workloads", {}) | {
                  name: json.loads((folders[name] / "facts.json").read_text()) for name in names}).items())),
              "installed": record.get("installed", {}) | {name: pins(python) for name, python in pythons.items()},
              "replaced_pins": record.get("replaced_pins", {}) | {
                  name: replaced_pins(python) for name, python in pythons.items()},
              "rows": ordered}
    out.write_text(_dumps(record))
    print(f"written to {out}")


def check_machine(out: Path) -> None:
    """Refuse to add rows to those of another kind of machine."""
    if out.exists() and (stored := json.loads(out.read_text())["machine"]["processor"]) != machine()["processor"]:
        raise SystemExit(f"{out} has rows of another machine, {stored}: write those of this one, "
                         f"{machine()['processor']}, to another file, such as {out.stem}-amd.json. The table shows "
                         "both")


def run(contestant: Contestant, workload: Path, folder: Path, pythons: dict[str, Path], seed: int) -> dict[str, Any]:
    """One run in a new process: its seconds, its peak memory and the quality of its last model; or its error."""
    answer = folder / "answer.json"
    for old in (answer, answer.with_suffix(".npz")):
        old.unlink(missing_ok=True)
    python = pythons[contestant.environment_name] if contestant.environment_name else Path(sys.executable)
    inherited = clean() if contestant.environment_name else dict(os.environ)
    command = [str(python), str(FOLDER / contestant.program), str(workload), str(answer), *contestant.arguments,
               "--seed", str(seed)]
    log = folder / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=folder,
            env=inherited | ALLOCATOR | dict(contestant.environment) | {"BENCHMARK_SPAWNED": str(time.monotonic())})
        peak, code = _watch(process)
    if code or not answer.exists():
        return {"error": log.read_text()[-2000:] or f"it ended with {code}"}
    measured: dict[str, Any] = json.loads(answer.read_text())
    with np.load(answer.with_suffix(".npz")) as model:
        scores = quality(workload, dict(model))
    return measured | scores | {"peak_mib": round(max(peak, measured["own_peak_mib"]), 1)}


def _watch(process: "subprocess.Popen[bytes]") -> tuple[float, int]:
    """Wait for a process; return the peak memory in MiB of it and its descendants, and its exit code.

    Memory that processes share is counted once (PSS). It is measured twice a second. (The kernel's own record of a
    child's peak includes the memory of this process, from before the child's program was loaded.)
    """
    peak, is_over = [0.0], threading.Event()

    def sample() -> None:
        while not is_over.wait(0.5):
            peak[0] = max(peak[0], sum(map(_pss, _descendants() - {os.getpid()})))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    deadline = threading.Timer(_LIMIT, process.kill)
    deadline.start()
    status = os.waitpid(process.pid, 0)[1]
    is_over.set()
    deadline.cancel()
    sampler.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    for pid in _descendants() - {os.getpid()}:  # servers that a framework has started
        os.kill(pid, signal.SIGKILL)
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    return peak[0], process.returncode


def _descendants() -> set[int]:
    """Ids of this process and of all its descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    return below(os.getpid(), parents)


def _pss(pid: int) -> float:
    """A process' share of memory, in MiB."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def machine() -> dict[str, Any]:
    """Processor, cores, memory and system of this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"processor": model, "cores": os.cpu_count(), "memory_gib": round(memory, 1),
            "system": platform.platform(), "python": platform.python_version()}


def ceilings(folder: Path) -> dict[str, float]:
    """Speed of sgemm and memory bandwidth of one core."""
    answer = folder / "ceilings.json"
    subprocess.run([sys.executable, str(FOLDER / "floor.py"), str(answer)], check=True,
                   env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    limits: dict[str, float] = json.loads(answer.read_text())
    return limits


def _row(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the repeats."""
    completed = [r for r in runs if "error" not in r]
    if not completed:
        return {"error": runs[-1]["error"]}
    row: dict[str, Any] = {key: round(statistics.median(r["seconds"][key] for r in completed), 6) for key in _MEDIANS}
    row["first_round_cold"] = round(completed[0]["seconds"]["first_round"], 6)
    row["rounds"] = [round(r["seconds"]["round"], 6) for r in completed]
    row["peak_mib"] = max(r["peak_mib"] for r in completed)
    for key in ("train_loss", "test_accuracy"):
        values = [r[key] for r in completed]
        row[key] = [min(values), max(values)]
    return row | {"facts": completed[0]["facts"]}


def _line(measured: dict[str, Any]) -> str:
    if "error" in measured:
        return "FAILED: " + measured["error"].strip().splitlines()[-1]
    s = measured["seconds"]
    return (f"{1e3 * s['round']:9.2f} ms a round (CPU {1e3 * s['round_cpu']:9.2f}), first {s['first_round']:6.2f} s, "
            f"import {s['import']:5.2f} s, {measured['peak_mib']:7.1f} MiB, loss {measured['train_loss']:.4f}, "
            f"accuracy {measured['test_accuracy']:.4f}")


def _dumps(record: dict[str, Any]) -> str:
    """JSON with a line per row."""
    rows = ",\n  ".join(json.dumps(row) for row in record["rows"])
    head = json.dumps({key: value for key, value in record.items() if key != "rows"}, indent=1)
    return f'{head[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n'
