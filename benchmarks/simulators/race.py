"""Run every contestant on every workload in alternation and write what came out."""

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
from contestants import CONTESTANTS, Contestant, clean, environment, pins
from peer import below
from workloads import WORKLOADS, cache, prepare, quality

__all__ = ["race"]

HERE = Path(__file__).parent
_MEDIANS = ("round", "round_cpu", "first_round", "import", "data")
_LIMIT = 1800.0  # seconds that one run may take
_SUBREAPER = 36  # prctl: orphans below this process become its children, so that nothing escapes being measured


def race(out: Path, works: Sequence[str] | None, who: Sequence[str] | None, repeats: int, *, quick: bool) -> None:
    """Measure and write.

    Args:
        out: the JSON; runs of contestants and workloads that are not taken now are kept.
        works: which workloads; none: all.
        who: beginnings of contestants' labels; none: all.
        repeats: runs of each.
        quick: two rounds of each, once, to a file in the cache folder.
    """
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    out, repeats = (folder / "quick.json", 1) if quick else (out, repeats)
    chosen = [c for c in CONTESTANTS if not who or any(c.label.lower().startswith(w.lower()) for w in who)]
    skipped = {c.label: reason for c in chosen if (reason := unable(c))}
    for label, reason in skipped.items():
        print(f"skipped {label}: {reason}", flush=True)
    chosen = [c for c in chosen if c.label not in skipped]
    pythons = {name: environment(name, folder) for name in dict.fromkeys(c.where for c in chosen) if name}
    names = list(works or WORKLOADS)
    places = {name: prepare(name, folder, 1 if quick else None) for name in names}
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for repeat in range(repeats):
        for name in names:
            for contestant in chosen:
                if contestant.only and name not in contestant.only:
                    continue
                found = run(contestant, places[name], folder, pythons, repeat)
                runs.setdefault((name, contestant.label), []).append(found)
                print(f"{repeat + 1}/{repeats} {name} {contestant.label:28} {_line(found)}", flush=True)
    record = json.loads(out.read_text()) if out.exists() else {"rows": []}
    rows = {(r["workload"], r["name"], r["setting"]): r for r in record["rows"]}
    for (name, label), found in runs.items():
        contestant = next(c for c in chosen if c.label == label)
        rows[name, contestant.name, contestant.setting] = {
            "workload": name, "name": contestant.name, "setting": contestant.setting, **_row(found)}
    order = {c.label: i for i, c in enumerate(CONTESTANTS)}
    kept = sorted(rows.values(), key=lambda r: (r["workload"], order.get(f"{r['name']}, {r['setting']}", 99)))
    record = {"command": "python -m benchmarks.simulators " + shlex.join(sys.argv[1:]), "machine": machine(),
              "ceilings": ceilings(folder), "repeats": repeats,
              "workloads": dict(sorted((record.get("workloads", {}) | {
                  name: json.loads((places[name] / "facts.json").read_text()) for name in names}).items())),
              "installed": record.get("installed", {}) | {name: pins(python) for name, python in pythons.items()},
              "skipped": skipped, "rows": kept}
    out.write_text(_dumps(record))
    print(f"written to {out}")


def run(contestant: Contestant, place: Path, folder: Path, pythons: dict[str, Path], seed: int) -> dict[str, Any]:
    """One run in a process of its own: its seconds, its peak memory, how good its last model is; or its error."""
    answer = folder / "answer.json"
    for old in (answer, answer.with_suffix(".npz")):
        old.unlink(missing_ok=True)
    python = pythons[contestant.where] if contestant.where else Path(sys.executable)
    inherited = clean() if contestant.where else dict(os.environ)
    command = [str(python), str(HERE / contestant.program), str(place), str(answer), *contestant.arguments,
               "--seed", str(seed)]
    log = folder / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=folder,
            env=inherited | dict(contestant.environment) | {"BENCHMARK_SPAWNED": str(time.monotonic())})
        peak, code = _watch(process)
    if code or not answer.exists():
        return {"error": log.read_text()[-2000:] or f"it ended with {code}"}
    found: dict[str, Any] = json.loads(answer.read_text())
    with np.load(answer.with_suffix(".npz")) as model:
        good = quality(place, dict(model))
    return found | good | {"peak_mib": round(max(peak, found["own_peak_mib"]), 1)}


def _watch(process: "subprocess.Popen[bytes]") -> tuple[float, int]:
    """Wait for a process: its peak memory in MiB, everything below it included, and its exit code.

    Memory that processes share is counted once (PSS), twice a second. (The kernel's own record of a child's peak has
    this process' memory in it, from before the child's program was loaded.)
    """
    most, over = [0.0], threading.Event()

    def sample() -> None:
        while not over.wait(0.5):
            most[0] = max(most[0], sum(map(_pss, _descendants() - {os.getpid()})))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    deadline = threading.Timer(_LIMIT, process.kill)
    deadline.start()
    status = os.waitpid(process.pid, 0)[1]
    over.set()
    deadline.cancel()
    sampler.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    for left in _descendants() - {os.getpid()}:  # a framework's own servers
        os.kill(left, signal.SIGKILL)
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    return most[0], process.returncode


def _descendants() -> set[int]:
    """Everything below this process, and itself."""
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


def unable(contestant: Contestant) -> str | None:
    """Why a contestant cannot take part here, if so."""
    if contestant.name == "ours" and contestant.setting != "1 core" and not _sharded():
        return "this version of ours runs a cohort on one device"
    return None


def _sharded() -> bool:
    try:
        from resolvent.simulate import schedulers
    except ImportError:
        return False
    return hasattr(schedulers, "Sharded")


def machine() -> dict[str, Any]:
    """What it was measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"processor": model, "cores": os.cpu_count(), "memory_gib": round(memory, 1),
            "system": platform.platform(), "python": platform.python_version()}


def ceilings(folder: Path) -> dict[str, float]:
    """One core's sgemm and bandwidth, measured alone."""
    answer = folder / "ceilings.json"
    subprocess.run([sys.executable, str(HERE / "floor.py"), str(answer)], check=True,
                   env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    found: dict[str, float] = json.loads(answer.read_text())
    return found


def _row(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the repeats."""
    good = [f for f in found if "error" not in f]
    if not good:
        return {"error": found[-1]["error"]}
    row: dict[str, Any] = {key: round(statistics.median(f["seconds"][key] for f in good), 6) for key in _MEDIANS}
    row["first_round_cold"] = round(good[0]["seconds"]["first_round"], 6)
    row["rounds"] = [round(f["seconds"]["round"], 6) for f in good]
    row["peak_mib"] = max(f["peak_mib"] for f in good)
    for key in ("train_loss", "test_accuracy"):
        values = [f[key] for f in good]
        row[key] = [min(values), max(values)]
    return row | {"facts": good[0]["facts"]}


def _line(found: dict[str, Any]) -> str:
    if "error" in found:
        return "FAILED: " + found["error"].strip().splitlines()[-1]
    s = found["seconds"]
    return (f"{1e3 * s['round']:9.2f} ms a round (CPU {1e3 * s['round_cpu']:9.2f}), first {s['first_round']:6.2f} s, "
            f"import {s['import']:5.2f} s, {found['peak_mib']:7.1f} MiB, loss {found['train_loss']:.4f}, "
            f"accuracy {found['test_accuracy']:.4f}")


def _dumps(record: dict[str, Any]) -> str:
    """JSON with a line per row."""
    rows = ",\n  ".join(json.dumps(row) for row in record["rows"])
    head = json.dumps({key: value for key, value in record.items() if key != "rows"}, indent=1)
    return f'{head[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n'
