"""The time of a round on a GPU: the schedulers on four workloads, and models that users write, also in PyTorch.

    python benchmarks/accelerator.py [--workloads W1 W2 ...] [--models mlp cnn ...] [--out benchmarks/accelerator.json]

Workloads are those of ``schedulers.py``; a process alternates their schedulers. Models and work are those of
``benchmarks/models``: ten parties train one epoch in minibatches of 20, by FedAvg, with the automatic scheduler;
PyTorch is a plain loop over the parties on the same device. Seconds are wall time, medians of the repeats for
workloads. The program runs on the devices that JAX finds: on a CPU it only tests itself.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

import resolvent as rv
from resolvent.simulator.engine.cohorts import draw_cohorts
from resolvent.simulator.engine.compiled_rounds import ChunkInputs, ChunkRunner
from resolvent.simulator.engine.rounds import initial_state
from schedulers import ROUNDS, Run, make

SCHEDULERS = {"lanes": rv.schedulers.Lanes(), "queue of 4": rv.schedulers.Queue(4),
              "sequential": rv.schedulers.Sequential()}
MODELS = {"mlp": 20_000, "logistic": 4_000, "cnn": 10_000, "resnet": 2_000, "series": 4_000, "gru": 2_000,
          "transformer": 4_000, "bag": 4_000}
MODELS_FOLDER = Path(__file__).parent / "models"


def main() -> None:
    """Measure, print, and write the file that is asked for after each row."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workloads", nargs="*", default=list(ROUNDS), choices=list(ROUNDS))
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the models' samples")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    device = jax.devices()[0]
    facts = {"jax": jax.__version__, "device": device.device_kind, "repeats": options.repeats,
             "command": f"python benchmarks/accelerator.py {' '.join(sys.argv[1:])}"}
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)
        rows.append(row)
        if options.out:
            options.out.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")

    for workload in options.workloads:
        for row in of_schedulers(workload, options.repeats):
            add(row)
        jax.clear_caches()
    for name in options.models:
        add(of_model(name, int(MODELS[name] * options.scale), "cuda" if device.platform == "gpu" else "cpu"))


def of_schedulers(workload: str, repeats: int) -> list[dict[str, Any]]:
    """Seconds of a round and of the first call for each scheduler."""
    problem, solver, participation = make(workload)
    algorithm, rounds = rv.fedprox(solver, mu=1.0), ROUNDS[workload]
    rows, runs = [], {}
    for name, scheduler in SCHEDULERS.items():
        begin = time.perf_counter()
        state = initial_state(algorithm, problem, participation)
        cohorts = draw_cohorts(participation, problem.sizes, 0, 0, rounds=rounds)
        runs[name] = Run(ChunkRunner(algorithm, 0, ("steps",), scheduler), ChunkInputs(problem, cohorts, state))
        runs[name].once(rounds, is_timed=False)
        rows.append({"workload": workload, "scheduler": name, "first_call": time.perf_counter() - begin})
    for _ in range(repeats):
        for run in runs.values():
            run.once(rounds, is_timed=True)
    return [row | {"seconds": statistics.median(runs[row["scheduler"]].wall)} for row in rows]


def of_model(name: str, samples: int, device: str) -> dict[str, Any]:
    """Microseconds a sample, ours and PyTorch's, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        weights = str(Path(folder) / "first.npz")
        _output("ours.py", name, "--weights", weights)
        ours = json.loads(_output("ours.py", name, str(samples), "2", "1").splitlines()[-1])
        torch = json.loads(_output("torch_loop.py", name, str(samples), "2", "4", weights, device).splitlines()[-1])
    return {"model": name, "samples": samples, "us": ours["us"], "torch_us": torch["us"],
            "ratio": torch["us"] / ours["us"], "compile_seconds": ours["compile_seconds"], "loss": ours["loss"],
            "torch_loss": torch["loss"]}


def _output(*command: str) -> str:
    return subprocess.run([sys.executable, *command], cwd=MODELS_FOLDER, check=True, stdout=subprocess.PIPE,
                          text=True).stdout


if __name__ == "__main__":
    main()
