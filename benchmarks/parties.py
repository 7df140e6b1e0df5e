"""Does the time of a round depend on the number of parties? A cohort of 10 from 100 to 100,000 parties.

    python benchmarks/parties.py [--out benchmarks/parties.json]

The algorithms have different states per party. Each figure is the median of the repeats. Sizes alternate, so that other
load of the machine affects all of them.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax

import resolvent as rv
from resolvent.simulator.engine.cohorts import draw_cohorts
from resolvent.simulator.engine.compiled_rounds import ChunkInputs, ChunkRunner
from resolvent.simulator.engine.rounds import initial_state

SIZES = (100, 1_000, 10_000, 100_000)
COHORT, ROUNDS, REPEATS = 10, 200, 7
PARTICIPATION = rv.participation.Uniform(COHORT)


def main() -> None:
    """Measure, print, and write the files that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    out = parser.parse_args().out
    solver = rv.SGD(0.05, batch_size=5, epochs=2)
    algorithms = {"fedavg": rv.fedavg(solver), "fedavg_plus": rv.fedavg_plus(solver, sigma=0.5),
                  "fedgeomed_plus": rv.fedgeomed_plus(solver, sigma=0.5)}
    runs = {}
    for n in SIZES:
        data = rv.datasets.synthetic(parties=n, samples=10, features=60, test=0.0)
        problem = rv.problems.LearningProblem(rv.models.linear(60), data)
        for name, algorithm in algorithms.items():
            runs[name, n] = _Rounds(algorithm, problem)
            runs[name, n]()  # compile
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    for _ in range(REPEATS):
        for key, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[key].append((time.perf_counter() - start) / ROUNDS)
    rows = [{"algorithm": name, "parties": n, "milliseconds_per_round": round(1e3 * statistics.median(s), 4)}
            for (name, n), s in seconds.items()]
    for name in algorithms:
        rows_of_name = [r for r in rows if r["algorithm"] == name]
        base = rows_of_name[0]["milliseconds_per_round"]
        print(f"{name:16}", "  ".join(f"N={r['parties']:>7,}: {r['milliseconds_per_round']:7.3f} ms "
                                      f"({r['milliseconds_per_round'] / base:4.2f}x)" for r in rows_of_name))
    if out:
        facts = {"cohort": COHORT, "rounds": ROUNDS, "repeats": REPEATS, "jax": jax.__version__,
                 "device": jax.devices()[0].device_kind, "command": f"python benchmarks/parties.py --out {out}"}
        out.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


class _Rounds:
    """Each call runs the same rounds from the state that the call before it left."""

    def __init__(self, algorithm: rv.Algorithm, problem: rv.problems.Problem) -> None:
        self._run_chunk = ChunkRunner(algorithm, 0, (), rv.schedulers.Sequential())
        cohorts = draw_cohorts(PARTICIPATION, problem.sizes, 0, 0, rounds=ROUNDS)
        self._inputs = ChunkInputs(problem, cohorts, initial_state(algorithm, problem, PARTICIPATION))

    def __call__(self) -> None:
        chunk = self._run_chunk(self._inputs, 0, ROUNDS)
        self._inputs = self._inputs._replace(state=jax.block_until_ready(chunk.state))


if __name__ == "__main__":
    main()
