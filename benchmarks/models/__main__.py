"""Models as users write them, in one federated round: resolvent with and without replaced operations, and PyTorch.

    python -m benchmarks.models --out FILE.json           everything: several minutes for each model and contestant
    python -m benchmarks.models --models cnn gru          some of the models
    python -m benchmarks.models --torch /path/to/python   a Python with PyTorch; without it, PyTorch is left out

Ten parties train one epoch in minibatches of 20, by FedAvg. Contestants alternate, each in a new process on one core.
CPU microseconds per training sample are those of a round after compilation, medians of the repeats.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MODELS = ("mlp", "logistic", "cnn", "resnet", "series", "gru", "lstm", "transformer", "bag")
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PJRT_NPROC"), "1")
_SLOW = ("cnn", "resnet")  # without replaced operations a round takes minutes


def main() -> None:
    """Parse the arguments, race, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__.split("\n")[0],
                                     epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the figures, as JSON")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--samples", type=int, default=2000, help="training samples of all parties")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--torch", help="a Python with PyTorch")
    options = parser.parse_args()
    rows = [race(name, options) for name in options.models]
    record = {"machine": platform.processor() or platform.machine(), "samples": options.samples,
              "repeats": options.repeats, "models": rows}
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{'model':12} {'ours':>9} {'plain':>9} {'PyTorch':>9} {'ratio':>6} {'compile s':>10}   CPU us per sample")
    for row in rows:
        ratio = row["torch"]["us"] / row["ours"]["us"] if "torch" in row else float("nan")
        cells = [row[c]["us"] if c in row else float("nan") for c in ("ours", "plain", "torch")]
        print(f"{row['model']:12} {cells[0]:9.1f} {cells[1]:9.1f} {cells[2]:9.1f} {ratio:6.2f} "
              f"{row['ours']['compile_seconds']:10.1f}")


def race(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The medians of all contestants on one model."""
    contestants = {"ours": [sys.executable, "ours.py"], "plain": [sys.executable, "ours.py"]}
    if options.torch:
        contestants["torch"] = [options.torch, "torch_loop.py"]
    runs: dict[str, list[dict[str, float]]] = {contestant: [] for contestant in contestants}
    for _ in range(options.repeats):
        for contestant, (python, program) in contestants.items():
            samples = min(options.samples, 400) if contestant == "plain" and name in _SLOW else options.samples
            environment = {**os.environ, **_ONE_THREAD, "RESOLVENT_REWRITES": str(int(contestant != "plain"))}
            output = subprocess.run([python, FOLDER / program, name, str(samples)], env=environment, check=True,
                                    text=True, capture_output=True).stdout
            runs[contestant].append(json.loads(output.splitlines()[-1]))
            print(name, contestant, runs[contestant][-1], flush=True)
    return {"model": name, **{contestant: {key: statistics.median(run[key] for run in of_contestant)
                                           for key in of_contestant[0]}
                              for contestant, of_contestant in runs.items()}}


if __name__ == "__main__":
    main()
