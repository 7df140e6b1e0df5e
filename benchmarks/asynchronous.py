"""CPU time of an asynchronous server: a million replies of 10,000 parties to a small model.

    nice python benchmarks/asynchronous.py [--events 1000000] [--out benchmarks/asynchronous.json]

Linear regression with eight features; a party has eight rows and makes one step with all of them in a job. FedBuff with
a buffer of 10; jobs have a median of exp(z) seconds, z ~ N(0, 1), jitter 0.3, and fail with a probability of 5 %.
``cpu_seconds`` is that of the whole run with its compilation, ``us_per_event`` the difference of that run and of one
with a hundredth of the events, both compiled before, divided by the events between them.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
import jax.numpy as jnp
import numpy as np

import resolvent as rv
from records import as_json

PARTIES, FEATURES, ROWS = 10_000, 8, 8


def main() -> None:
    """Measure, print, and write the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="number of replies")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(PARTIES, ROWS, FEATURES)), rng.normal(size=FEATURES)
    data = rv.FederatedData.from_arrays([*x], [*(x @ w + 0.1 * rng.normal(size=(PARTIES, ROWS)))], validation=0, test=0)
    participation = rv.participation.Arrivals(jnp.asarray(np.exp(rng.normal(size=PARTIES))), jitter=0.3, failure=0.05)
    algorithm = rv.fedbuff(rv.SGD(0.05, batch_size=ROWS, epochs=1), buffer=10)

    def seconds(events: int) -> float:
        began = time.process_time()
        result = rv.simulate(algorithm, rv.models.linear(FEATURES), data, rounds=events, evaluate_every=events,
                             participation=participation, progress=False)
        spent = time.process_time() - began
        assert float(jnp.linalg.norm(result.server_model["weight"][0] - w)) < 0.5
        return spent

    few = options.events // 100
    first, short = seconds(options.events), seconds(few)
    steady = (seconds(options.events) - short) / (options.events - few)
    row = {"events": options.events, "cpu_seconds": round(first, 1), "us_per_event": round(1e6 * steady, 1)}
    print(json.dumps(row), flush=True)
    if options.out:
        options.out.write_text(as_json({
            "parties": PARTIES, "features": FEATURES, "jax": jax.__version__,
            "command": f"nice python benchmarks/asynchronous.py --events {options.events} --out {options.out}"},
            rows=[row]))


if __name__ == "__main__":
    main()
