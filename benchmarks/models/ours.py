"""One federated round of a model of ``equinox_models``: python ours.py MODEL SAMPLES; prints JSON."""

import json
import os
import resource
import sys

os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")

import numpy as np
from equinox_models import MODELS

import resolvent as rv
from resolvent.data.federated import Split

_PARTIES, _ROUNDS = 10, 4  # the first round compiles


def random_data(shape: tuple[int, ...], tokens: int, classes: int, samples: int) -> rv.FederatedData:
    """Random samples, tokens if ``tokens`` is positive, in parties of equal size."""
    random = np.random.default_rng(0)
    x = (random.integers(0, tokens, (samples, *shape)).astype(np.int32) if tokens
         else random.normal(size=(samples, *shape)).astype(np.float32))
    length = np.full(_PARTIES, samples // _PARTIES)
    offset = np.arange(_PARTIES) * length
    empty = Split(np.zeros_like(offset), np.zeros_like(length))
    return rv.FederatedData(
        x, random.integers(0, classes, samples).astype(np.int32),
        {"train": Split(offset, length), "validation": empty, "test": empty}, tuple(map(str, range(_PARTIES))),
        "classification", tuple(map(str, range(classes))), vocabulary=tuple(map(str, range(tokens))))


def main() -> None:
    """Run and print."""
    name, samples = sys.argv[1], int(sys.argv[2])
    make, shape, tokens, classes = MODELS[name]
    model = rv.models.logistic(shape[0], classes) if make is None else rv.models.from_equinox(make)
    result = rv.simulate(rv.fedavg(rv.SGD(0.05, batch_size=20, epochs=1)), model,
                         random_data(shape, tokens, classes, samples), rounds=_ROUNDS, evaluate_every=1, seed=0,
                         progress=False)
    last = result.metrics[(result.metrics["metric"] == "loss") & (result.metrics["round"] == _ROUNDS)]
    print(json.dumps({"us": 1e6 * float(np.median(result.facts["cpu_per_round"][1:])) / samples,
                      "compile_seconds": result.facts["seconds"]["compile"], "loss": float(last["value"].mean()),
                      "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if __name__ == "__main__":
    main()
