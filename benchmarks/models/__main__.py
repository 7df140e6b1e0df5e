"""Models as users write them, in one federated round: resolvent with and without replaced operations, and PyTorch.

    python -m benchmarks.models                            everything, about 30 minutes: JSON and picture
    python -m benchmarks.models --models cnn gru           some of the models; rows of others stay in the file
    python -m benchmarks.models --quick                    one short run of each, as a test: not to be quoted
    python -m benchmarks.models --redraw                   the picture from the JSON alone
    python -m benchmarks.models --torch /path/to/python    a Python with PyTorch, instead of an environment of its own

Ten parties train one epoch in minibatches of 20, by FedAvg, on the same samples. Contestants alternate, each in a new
process, on one core and on two (two devices; two threads), with an allocator that keeps its buffers. Figures are
microseconds per training sample of rounds after compilation, CPU time and wall time, medians of the repeats. PyTorch
is a plain loop over the parties. It is installed into the environment of benchmarks.simulators, in the user's cache
folder.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.models.report import report
from benchmarks.models.workload import PARTIES, SHAPES
from benchmarks.records import ALLOCATOR

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "simulators"))

_LIMIT = 600.0  # seconds that one run may take
# Without replaced operations, a round of these takes minutes.
_PLAIN_SAMPLES = {"cnn": 100, "resnet": 40}
_QUICK_SAMPLES = 40
_REPLACED, _PLAIN, _TORCH = "ours", "ours, nothing replaced", "PyTorch"


def main() -> None:
    """Parse the arguments, race, and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__.split("\n")[0],
                                     epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER.parent / "models.json", help="the figures, as JSON")
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES), help="default: all")
    parser.add_argument("--cores", nargs="+", type=int, choices=[1, 2], default=[1, 2], help="default: 1 and 2")
    parser.add_argument("--repeats", type=int, default=3, help="number of runs of each")
    parser.add_argument("--rounds", type=int, default=2, help="number of timed rounds, after as many others")
    parser.add_argument("--torch", type=Path, metavar="PYTHON", help="a Python with PyTorch and NumPy")
    parser.add_argument("--quick", action="store_true", help="one run of each with few samples, written to "
                        "models-quick.json in the cache folder")
    parser.add_argument("--redraw", action="store_true", help="only draw the picture of the JSON file")
    options = parser.parse_args()
    if options.redraw:
        report(options.out)
        return
    from contestants import environment, pins
    from race import ceilings, machine
    from workloads import cache

    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    if options.quick:
        options.out, options.repeats, options.rounds = folder / "models-quick.json", 1, 1
    options.torch = options.torch or environment("torch", folder)
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    order = list(SHAPES)
    record = {"command": "python -m benchmarks.models", "machine": machine(), "ceilings": ceilings(folder),
              "parties": PARTIES, "rounds": options.rounds, "repeats": options.repeats,
              "installed": pins(options.torch)}
    for name in options.models:
        rows = [row for row in rows if row["model"] != name] + race(name, options)
        # After each model, so that an interruption loses one model only.
        options.out.write_text(json.dumps(
            record | {"rows": sorted(rows, key=lambda row: order.index(row["model"]))}, indent=1) + "\n")
    report(options.out)


def race(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The medians of all contestants on one model."""
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for _ in range(options.repeats):
        for cores in options.cores:
            for contestant in (_REPLACED, _TORCH):
                runs.setdefault((contestant, cores), []).append(run(name, contestant, cores, options))
    if 1 in options.cores:
        runs[_PLAIN, 1] = [run(name, _PLAIN, 1, options)]
    return [{"model": name, "contestant": contestant, "cores": cores,
             **{key: value if isinstance(value := of_contestant[0][key], str)
                else statistics.median(one_run[key] for one_run in of_contestant) for key in of_contestant[0]}}
            for (contestant, cores), of_contestant in runs.items()]


def run(name: str, contestant: str, cores: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run in a new process."""
    samples = _QUICK_SAMPLES * PARTIES // 2 if options.quick else SHAPES[name].samples
    rounds = options.rounds
    if contestant == _PLAIN and name in _PLAIN_SAMPLES:
        samples, rounds = _PLAIN_SAMPLES[name] * 2, 1
    is_torch = contestant == _TORCH
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(cores))
    ours = {**threads, "PJRT_NPROC": "1", "XLA_CPU_REWRITES": str(int(contestant != _PLAIN)),
            "JAX_ENABLE_COMPILATION_CACHE": "false"}
    command = [options.torch if is_torch else sys.executable, FOLDER / ("torch_loop.py" if is_torch else "ours.py"),
               name, str(samples), str(rounds), str(cores), *([_first_weights(name)] if is_torch else [])]
    process = subprocess.run(command, env={**_environment(is_torch), **ALLOCATOR, **(threads if is_torch else ours)},
                             check=False, text=True, capture_output=True, timeout=_LIMIT)
    if process.returncode:
        raise SystemExit(f"{contestant} failed on {name}:\n{process.stderr[-2000:]}")
    row: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    print(f"{name:12} {contestant:24} {cores} cores: {row['us_cpu']:9.1f} us CPU, {row['us']:9.1f} us a sample, "
          f"loss {row['loss']:.3f}", flush=True)
    return row


@functools.cache
def _first_weights(name: str) -> str:
    """The file to which the model's first parameters are written, once."""
    from workloads import cache

    path = cache() / f"models-{name}.npz"
    subprocess.run([sys.executable, FOLDER / "ours.py", name, "--weights", path], check=True)
    return str(path)


def _environment(is_torch: bool) -> dict[str, str]:
    from contestants import clean

    return clean() if is_torch else dict(os.environ)


if __name__ == "__main__":
    main()
