"""Up to a million parties in host memory: seconds per round, peak memory and disk, at 1e3, 1e4, 1e5 and 1e6 parties.

    python benchmarks/scale.py [--sizes 1000 10000 100000 1000000] [--scratch FOLDER] [--out benchmarks/scale.json]
                               [--figure benchmarks/scale.svg]

Each party has 10 samples of 784 pixels, stored as bytes on the disk: 7.9 GB for a million parties (31 GB in float32). A
cohort of 10 trains logistic regression for 20 epochs of minibatches of 10, by FedAvg, whose parties have no state, and
by FedAvg+, whose parties have a model of 31 KB each. Every run is a separate process, so that its peak memory can be
measured. It begins with the data out of the page cache, so that they are read from the disk. Figures are medians of the
repeats. Sizes alternate, so that other load of the machine affects all of them. A run's seconds per round are the
median of its chunks, which include the waiting for data and states. ``device`` rows have everything on the device, for
comparison, as far as it fits.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import resolvent as rv
from resolvent.simulator.record.plots import COLOURS, style

SIZES = (1_000, 10_000, 100_000, 1_000_000)
SAMPLES, FEATURES, CLASSES, COHORT, CHUNK = 10, 784, 10, 10, 20
ALGORITHMS = {"fedavg": rv.fedavg,
              "protected_fedplus": lambda solver: rv.protected_fedplus(solver, rv.penalties.SquaredL2())}


def parties(count: int) -> Iterator[tuple[Any, Any]]:
    """Images of ten patterns with noise; each party has a different brightness."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 160, (CLASSES, FEATURES), np.uint8)
    for begin in range(0, count, 1000):
        labels = rng.integers(0, CLASSES, (min(1000, count - begin), SAMPLES))
        noise = rng.integers(0, 96, (*labels.shape, FEATURES), np.uint8)
        bright = rng.integers(1, 4, len(labels), np.uint8)
        for digits, blur, shade in zip(labels, noise, bright, strict=True):
            yield patterns[digits] // shade + blur, digits


def one_run(folder: Path, algorithm: str, memory: Any, chunks: int, scratch: Path) -> dict[str, Any]:
    """The measurements of one process."""
    with (folder / "x.npy").open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    ticks: list[float] = []
    begin = time.perf_counter()
    result = rv.simulate(
        ALGORITHMS[algorithm](rv.SGD(0.03, batch_size=10, epochs=20)), rv.models.logistic(FEATURES, CLASSES),
        rv.open_packed(folder), rounds=chunks * CHUNK, evaluate_every=CHUNK, evaluate_parties=1000,
        participation=rv.participation.Uniform(COHORT), memory=memory, checkpoint=scratch / "run",
        progress=lambda done, total: ticks.append(time.perf_counter() - begin))
    rows = list((scratch / "run.parties").glob("*")) if memory == "host" else []
    with_evaluation = (ticks[-1] - ticks[2]) / ((chunks - 2) * CHUNK)
    return {"seconds_per_round": statistics.median(result.facts["seconds_per_round"][2:]),
            "with_evaluation_and_checkpoints": with_evaluation, "first_chunk_after": ticks[1],
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "rows_mib": sum(p.stat().st_blocks * 512 for p in rows) / 2**20,
            "accuracy": float(result.scores("train").iloc[-1].mean())}


def measure(folder: Path, algorithm: str, memory: str, chunks: int, scratch: Path) -> dict[str, Any]:
    """``one_run`` in a new process."""
    run_folder = Path(tempfile.mkdtemp(dir=scratch))
    command = [sys.executable, __file__, "--one", str(folder), algorithm, memory, str(chunks), str(run_folder)]
    row: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    shutil.rmtree(run_folder)
    return row


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Seconds per round and peak memory against the number of parties."""
    figure = Figure(figsize=(8.6, 3.2), layout="constrained")
    for axes, key, factor, label in zip(figure.subplots(1, 2), ("seconds_per_round", "peak_mib"), (1e3, 1 / 1024),
                                        ("milliseconds per round", "peak resident memory, GiB"), strict=True):
        for i, algorithm in enumerate(ALGORITHMS):
            for memory, dashes in (("host", "o-"), ("device", "x--")):
                selected = [r for r in rows if (r["algorithm"], r["memory"]) == (algorithm, memory)]
                axes.plot([r["parties"] for r in selected], [factor * r[key] for r in selected], dashes,
                          color=COLOURS[i], label=f"{algorithm}, {memory} memory")
        axes.set_xscale("log")
        axes.set_ylim(0)
        axes.set_xlabel("parties")
        axes.set_ylabel(label)
    axes.legend()
    return figure


def main() -> None:
    """Write the data, measure, print, and write the files that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--chunks", type=int, default=25, help=f"of {CHUNK} rounds, in a run")
    parser.add_argument("--device", type=int, default=10_000, help="maximum number of parties for runs on the device")
    parser.add_argument("--scratch", type=Path, help="folder for data and states; they are removed at the end")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--figure", type=Path, help="draw them")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        folder, algorithm, memory, chunks, run_folder = options.one
        print(json.dumps(one_run(Path(folder), algorithm, memory, int(chunks), Path(run_folder))))
        return
    if options.scratch:
        options.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="resolvent-scale-", dir=options.scratch) as name:
        scratch, written = Path(name), {}
        free, need = shutil.disk_usage(scratch).free, sum(options.sizes) * (SAMPLES * (FEATURES + 4) + 12) + 2**30
        if free < need:
            sys.exit(f"{scratch} has {free / 2**30:.1f} GiB free, and {need / 2**30:.1f} are needed: give another "
                     "--scratch, or fewer --sizes")
        for n in options.sizes:
            begin = time.perf_counter()
            rv.write_packed(scratch / f"{n}", parties(n), classes=[str(c) for c in range(CLASSES)], validation=0,
                            test=0, scale=1 / 255, name="pixels")
            written[n] = time.perf_counter() - begin
        cases = [(n, a, m) for n in options.sizes for a in ALGORITHMS for m in ("host", "device")
                 if m == "host" or n <= options.device]
        runs: dict[tuple[int, str, str], list[dict[str, Any]]] = {case: [] for case in cases}
        for _ in range(options.repeats):
            for n, algorithm, memory in cases:
                runs[n, algorithm, memory].append(measure(scratch / f"{n}", algorithm, memory, options.chunks, scratch))
        rows = [{"parties": n, "algorithm": a, "memory": m,
                 **{key: float(f"{statistics.median(run[key] for run in measured):.4g}") for key in measured[0]},
                 "data_mib": round(sum(p.stat().st_size for p in (scratch / f"{n}").iterdir()) / 2**20, 1),
                 "write_data_seconds": round(written[n], 1)} for (n, a, m), measured in runs.items()]
    print(f"{'algorithm':12} {'memory':7} {'parties':>9} {'ms/round':>9} {'x':>5} {'with eval.':>10} {'1st chunk':>11} "
          f"{'peak MiB':>9} {'data MiB':>9} {'rows MiB':>9} {'accuracy':>8}")
    for algorithm in ALGORITHMS:
        for memory in ("host", "device"):
            selected = [r for r in rows if (r["algorithm"], r["memory"]) == (algorithm, memory)]
            for r in selected:
                print(f"{algorithm:12} {memory:7} {r['parties']:9,} {1e3 * r['seconds_per_round']:9.3f} "
                      f"{r['seconds_per_round'] / selected[0]['seconds_per_round']:5.2f} "
                      f"{1e3 * r['with_evaluation_and_checkpoints']:10.3f} {r['first_chunk_after']:9.1f} s "
                      f"{r['peak_mib']:9.0f} {r['data_mib']:9.1f} {r['rows_mib']:9.1f} {r['accuracy']:8.3f}")
    if options.out:
        facts = {"samples": SAMPLES, "features": FEATURES, "cohort": COHORT, "epochs": 20, "batch": 10,
                 "stored": "uint8", "rounds": options.chunks * CHUNK, "chunk": CHUNK, "repeats": options.repeats,
                 "cores": os.cpu_count(), "jax": jax.__version__, "device": jax.devices()[0].device_kind,
                 "command": f"python benchmarks/scale.py {' '.join(sys.argv[1:])}"}
        lines = ",\n".join(f"  {json.dumps(r)}" for r in rows)
        options.out.write_text(f'{json.dumps(facts, indent=1)[:-2]},\n "rows": [\n{lines}\n ]\n}}\n')
    if options.figure:
        with mpl.rc_context({**style, "svg.hashsalt": "resolvent"}):
            draw(rows).savefig(options.figure, metadata={"Date": None})


if __name__ == "__main__":
    main()
