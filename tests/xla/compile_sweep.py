"""Does every program that plain JAX compiles also compile with call metadata, and give the same numbers?

    python tests/xla/compile_sweep.py [models] [algorithms] [operations] [--every N] [--threads N] [--out FILE]

The grids:
    models: features x classes x batch sizes x precisions x kinds of models, one round of FedAvg.
    algorithms: every preset with wide binary logistic regression.
    operations: random programs of the operations that a small call may have.

A case lowers both forms of its program. Where they differ, both are compiled and run. The outcomes:
    same: the form with call metadata is the plain form, because no small call applies.
    agrees: both compile, and their results agree up to rounding.
    refused: the compiler refuses the form with call metadata; a run falls back to the plain form, with a warning.
    differs: the results do not agree.
    error: the plain form fails.
    died: the process died, or the case took more than five minutes.
Only ``same`` and ``agrees`` are right; the exit status is 1 if a case has another outcome. Cases run in another
process, one after the other; if it dies, a new process continues with the next case.
"""

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

SECONDS = 600
FEATURES = (1, 2, 100, 1024, 2000, 4095, 4096, 5000, 20_000)
CLASSES = (2, 3, 10, 100)
BATCHES = (1, 4, 10, 32, 64)
PRECISIONS = ("float32", "float64")
KINDS = ("built-in", "Equinox", "Flax", "functions")
PROGRAMS = 600
WRONG = ("refused", "differs", "error", "died")
# The cases that CI runs: those that once failed, and the limits of the rule for products.
FIXED = [
    *({"grid": "models", "kind": kind, "features": features, "classes": 2, "batch": batch, "precision": precision}
      for kind, features, batch, precision in [("built-in", 4095, 1, "float32"), ("built-in", 4096, 10, "float32"),
                                               ("built-in", 5000, 4, "float64"), ("functions", 5000, 10, "float32"),
                                               ("Equinox", 20_000, 64, "float32"), ("Flax", 20_000, 1, "float32")]),
    *({"grid": "operations", "seed": seed} for seed in (2, 5, 7, 8, 9, 10, 60, 64)),
]

Case = dict[str, Any]


def main() -> None:
    """Run the grids, print what is wrong and the number of each outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", nargs="*", metavar="{models,algorithms,operations,fixed}",
                        help="default: models, algorithms and operations")
    parser.add_argument("--every", type=int, default=1, help="run only every N-th case")
    parser.add_argument("--threads", type=int, help="number of XLA's threads; default: all cores")
    parser.add_argument("--out", type=Path, help="write one line of JSON per case")
    arguments = parser.parse_args()
    if unknown := {*arguments.grids} - {"models", "algorithms", "operations", "fixed"}:
        parser.error(f"unknown grids: {', '.join(sorted(unknown))}")  # argparse refuses no grid if it has choices
    cases = [case for grid in arguments.grids or ("models", "algorithms", "operations") for case in grid_cases(grid)]
    counts: Counter[tuple[str, str]] = Counter()
    out = arguments.out.open("w") if arguments.out else None
    for result in outcomes(list(islice(cases, 0, None, arguments.every)), arguments.threads):
        counts[result["grid"], result["outcome"]] += 1
        if out:
            print(json.dumps(result), file=out, flush=True)
        if result["outcome"] in WRONG:
            print(json.dumps(result), flush=True)
    for (grid, outcome), count in sorted(counts.items()):
        print(f"{grid:12} {outcome:8} {count}")
    sys.exit(any(outcome in WRONG for _, outcome in counts))


def grid_cases(grid: str) -> list[Case]:
    """The cases of a grid."""
    if grid == "models":
        return [{"grid": grid, "kind": kind, "features": features, "classes": classes, "batch": batch,
                 "precision": precision}
                for kind, features, classes, batch, precision
                in product(KINDS, FEATURES, CLASSES, BATCHES, PRECISIONS)]
    if grid == "algorithms":
        from resolvent.algorithms import presets
        return [{"grid": grid, "preset": preset} for preset in sorted(presets.__all__)]
    return FIXED if grid == "fixed" else [{"grid": grid, "seed": seed} for seed in range(PROGRAMS)]


def outcomes(cases: list[Case], threads: int | None = None) -> Iterator[Case]:
    """Each case with its outcome."""
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "XLA_CPU_SMALL_CALLS")}
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false", "TF_CPP_MIN_LOG_LEVEL": "1"}
    if threads:
        environment["PJRT_NPROC"] = str(threads)
    done = 0
    while done < len(cases):
        with tempfile.TemporaryFile("w+") as messages, tempfile.TemporaryFile("w+") as remaining:
            json.dump(cases[done:], remaining)
            remaining.seek(0)
            worker = subprocess.Popen([sys.executable, "-c", "import compile_sweep; compile_sweep.run_cases()"],
                                      stdin=remaining, stdout=subprocess.PIPE, stderr=messages, text=True,
                                      cwd=Path(__file__).parent, env=environment)
            assert worker.stdout is not None
            with worker.stdout:
                for line in worker.stdout:
                    yield json.loads(line)
                    done += 1
            status = worker.wait()
            if done < len(cases):
                messages.seek(0)
                yield cases[done] | {"outcome": "died", "status": status, "message": first_line(messages.read())}
                done += 1


def first_line(messages: str) -> str:
    """The first line that is not a warning of XLA."""
    return next((line for line in messages.splitlines() if not line.startswith("W")), "")[:300]


def run_cases() -> None:
    """The worker: cases from the standard input, outcomes to the standard output."""
    import jax
    from compile_sweep_programs import outcome

    for number, case in enumerate(json.load(sys.stdin)):
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        print(json.dumps(case | outcome(case)), flush=True)
        if number % 50 == 49:
            jax.clear_caches()


if __name__ == "__main__":
    main()
