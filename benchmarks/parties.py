"""Does a round's time depend on how many parties there are? A cohort of 10 from 100 up to 100,000 parties.

    python benchmarks/parties.py [--out benchmarks/parties.json]

Every algorithm keeps or remembers something different per party; each row is the median over repeats, taken in
alternation so that a busy moment of the machine hits all sizes alike.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: XLA's threads only spin on steps this small

import jax
import jax.numpy as jnp

import resolvent as rv
from resolvent.simulate.engine import initial, run_chunk

SIZES = (100, 1_000, 10_000, 100_000)
COHORT, ROUNDS, REPEATS = 10, 200, 7


def main() -> None:
    """Measure and print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    out = parser.parse_args().out
    solver = rv.SGD(0.05, batch_size=5, epochs=2)
    algorithms = {"fedavg": rv.fedavg(solver), "fedavg_plus": rv.fedavg_plus(solver),
                  "fedgeomed_plus": rv.fedgeomed_plus(solver)}
    runs = {}
    for n in SIZES:
        data = rv.datasets.synthetic(parties=n, samples=10, features=60, test=0.0)
        problem = rv.problems.LearningProblem(rv.models.linear(60), data)
        for name, algorithm in algorithms.items():
            state = initial(algorithm, problem, rv.participation.Uniform(COHORT), jnp.array(0))
            runs[name, n] = [algorithm, problem, state]
            _chunk(runs[name, n])  # compile and warm up
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    for _ in range(REPEATS):
        for key, run in runs.items():
            start = time.perf_counter()
            _chunk(run)
            seconds[key].append((time.perf_counter() - start) / ROUNDS)
    rows = [{"algorithm": name, "parties": n, "milliseconds_per_round": round(1e3 * statistics.median(s), 4)}
            for (name, n), s in seconds.items()]
    for name in algorithms:
        mine = [r for r in rows if r["algorithm"] == name]
        base = mine[0]["milliseconds_per_round"]
        print(f"{name:16}", "  ".join(f"N={r['parties']:>7,}: {r['milliseconds_per_round']:7.3f} ms "
                                      f"({r['milliseconds_per_round'] / base:4.2f}x)" for r in mine))
    if out:
        facts = {"cohort": COHORT, "rounds": ROUNDS, "repeats": REPEATS, "jax": jax.__version__,
                 "device": jax.devices()[0].device_kind, "command": f"python benchmarks/parties.py --out {out}"}
        out.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


def _chunk(run: list) -> None:  # type: ignore[type-arg]
    algorithm, problem, state = run
    chunk = run_chunk(algorithm, problem, rv.participation.Uniform(COHORT), state, jnp.array(0), jnp.array(0), jnp.array(ROUNDS),
                      capacity=ROUNDS, record=(), scheduler="sequential")
    run[2] = jax.block_until_ready(chunk.state)


if __name__ == "__main__":
    main()
