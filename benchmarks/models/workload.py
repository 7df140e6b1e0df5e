"""What all contestants share: the samples of each model, the settings of a round, and the timing.

Only NumPy is imported, because PyTorch runs in a virtual environment of its own.

A round is FedAvg over ten parties, one epoch each in minibatches of 20. The first half of the rounds compiles; the
second half is timed.
"""

import resource
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["BATCH", "LEARNING_RATE", "PARTIES", "SHAPES", "Meter", "Shape", "random_samples"]

PARTIES, BATCH, LEARNING_RATE = 10, 20, 0.05


@dataclass(frozen=True)
class Shape:
    """The samples of a model.

    Attributes:
        shape: of an input.
        tokens: number of tokens; 0 for floating numbers.
        classes: number of classes.
        samples: default number of training samples of all parties.
    """

    shape: tuple[int, ...]
    tokens: int
    classes: int
    samples: int = 2000


SHAPES = {
    "mlp": Shape((784,), 0, 10, 20000),
    "logistic": Shape((5000,), 0, 2, 4000),
    "cnn": Shape((1, 28, 28), 0, 10, 1000),
    "resnet": Shape((3, 32, 32), 0, 10, 400),
    "series": Shape((9, 128), 0, 6, 4000),
    "gru": Shape((80,), 80, 80, 2000),
    "lstm": Shape((80,), 80, 80, 2000),
    "transformer": Shape((64,), 1000, 10, 1000),
    "language": Shape((64,), 1000, 1000, 500),
    "bag": Shape((64,), 20000, 10, 4000),
}


def random_samples(name: str, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels, the same for all contestants.

    Labels depend on the inputs, so that the loss decreases at the rate at which a model learns. Those of the language
    model are the next tokens of sequences in which a token follows from the one before.
    """
    random, of = np.random.default_rng(0), SHAPES[name]
    if name == "language":
        tokens = [random.integers(0, of.tokens, samples)]
        for _ in range(of.shape[0]):
            tokens.append((31 * tokens[-1] + 7) % of.tokens)
        text = np.stack(tokens, axis=1).astype(np.int32)
        return text[:, :-1], text[:, 1:]
    x = (random.integers(0, of.tokens, (samples, *of.shape)).astype(np.int32) if of.tokens
         else random.normal(size=(samples, *of.shape)).astype(np.float32))
    first = x.reshape(samples, -1)[:, :8].astype(np.float64)
    return x, (np.abs(first.sum(axis=1) * 1000).astype(np.int64) % of.classes).astype(np.int32)


class Meter:
    """Seconds of the timed rounds, wall time, CPU time, and the peak memory of the process."""

    def __init__(self) -> None:
        self.start = self._clocks()

    def restart(self) -> None:
        """Begin with the timed rounds."""
        self.start = self._clocks()

    def row(self, samples: int, **facts: Any) -> dict[str, Any]:
        """The result of a contestant.

        Args:
            samples: number of samples processed since ``restart``.
            **facts: further facts.
        """
        wall, cpu = (end - begin for end, begin in zip(self._clocks(), self.start, strict=True))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"us_cpu": 1e6 * cpu / samples, "us": 1e6 * wall / samples, "peak_mib": peak, **facts}

    @staticmethod
    def _clocks() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()
