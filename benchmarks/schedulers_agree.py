"""Every preset under every scheduler, sharded over two devices, against parties one after the other on one.

    python benchmarks/schedulers_agree.py [--schedulers sharded-queue ...] [--out agreement.json] [preset ...]

The contract compares the sequential scheduler and a queue with a plain Python loop for every preset, and the tests
compare a few presets on two devices. This program compares all presets, in minutes. Exit code 1 if a difference in
float64 is above 1e-10.
"""

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[1] / "tests" / name) for name in (".", "algorithms"))
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # most of the time is compilation

import jax
import numpy as np
from test_contract import COMBINED, ROWS

import resolvent as rv
from resolvent.simulator.engine.rounds import run_rounds
from resolvent.testing import example_participation, example_problem, example_solver

TOLERANCE = 1e-10


def main() -> None:
    """Print a line for each preset and scheduler."""
    for setting, value in {"num_cpu_devices": 2, "enable_compilation_cache": False, "enable_x64": True}.items():
        jax.config.update(f"jax_{setting}", value)
    lanes, queue, sharded = rv.schedulers.Lanes, rv.schedulers.Queue, rv.schedulers.Sharded.over
    schedulers = {"lanes": lanes(3), "queue": queue(2), "sharded": sharded(rv.schedulers.Sequential()),
                  "sharded-lanes": sharded(lanes(2)), "sharded-queue": sharded(queue(2))}
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("presets", nargs="*", default=sorted(ROWS | COMBINED))
    parser.add_argument("--schedulers", nargs="+", default=list(schedulers), choices=list(schedulers))
    parser.add_argument("--out", type=Path, help="write the differences as JSON")
    arguments = parser.parse_args()
    # On two devices a cohort of five has six slots, one of which is empty.
    participation = example_participation(rv.participation.Stragglers(rv.participation.Uniform(cohort=5), share=0.5))
    problem, differences = example_problem(), {}
    for name in arguments.presets:
        algorithm = (ROWS | COMBINED)[name](example_solver())
        sequential = run_rounds(algorithm, problem, participation, rounds=3)
        for label in arguments.schedulers:
            other = run_rounds(algorithm, problem, participation, rounds=3, scheduler=schedulers[label])
            differences[f"{name}, {label}"] = difference = max(
                (float(np.max(np.abs(np.asarray(a, float) - np.asarray(b, float)), initial=0.0))
                 for a, b in zip(jax.tree.leaves(sequential), jax.tree.leaves(other), strict=True)), default=0.0)
            print(f"{name:32} {label:14} {difference:.1e}", flush=True)
        jax.clear_caches()
    if arguments.out:
        arguments.out.write_text(json.dumps(differences, indent=1) + "\n")
    worst = max(differences.values())
    print(f"{len(differences)} comparisons, largest difference {worst:.1e}")
    sys.exit(not worst <= TOLERANCE)


if __name__ == "__main__":
    main()
