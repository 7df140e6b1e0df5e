"""A stopwatch that separates compilation from the rest."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from resolvent.simulator.mesh import from_writer

# Tracing, lowering and backend compilation, as JAX itself reports them.
_COMPILATION = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration",
                "/jax/core/compile/backend_compile_duration")
_compile_seconds = 0.0

_SECONDS_OF_A_CALL = 0.5
_MAX_GROWTH = 4


def _add_compilation(event: str, duration_secs: float, **_: str | int) -> None:
    global _compile_seconds
    if event in _COMPILATION:
        _compile_seconds += duration_secs


def compile_seconds() -> float:
    """The seconds that this process has compiled, as JAX itself reports them."""
    return _compile_seconds


jax.monitoring.register_event_duration_secs_listener(_add_compilation)


@dataclass
class Stopwatch:
    """Seconds of a block of work.

    Attributes:
        total: seconds in total.
        compile: seconds of compilation, which are part of ``total``.
        cpu: CPU seconds of all threads of this process.
    """

    total: float = 0.0
    compile: float = 0.0
    cpu: float = 0.0

    @property
    def run(self) -> float:
        """Seconds without compilation."""
        return max(self.total - self.compile, 0.0)


@contextlib.contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Time a block of work; its results must be ready when the block ends."""
    watch = Stopwatch()
    start, compile_before, cpu = time.perf_counter(), _compile_seconds, time.process_time()
    yield watch
    watch.total, watch.compile = time.perf_counter() - start, _compile_seconds - compile_before
    watch.cpu = time.process_time() - cpu


class Pace:
    """Chooses the number of rounds of the next call from the seconds of the last one.

    Calls of about half a second show progress and allow checkpoints in time. The number of rounds is an argument of the
    compiled function, so the division into calls changes no bit of a result.

    Attributes:
        rounds: maximum number of rounds of the next call. The first call has one round.
    """

    def __init__(self) -> None:
        self.rounds = 1

    def add(self, rounds: int, seconds: float) -> None:
        """Use the measurement of a call: its number of rounds, and its seconds without compilation.

        With several processes, all use the numbers of the first one, because they must run the same calls.
        """
        fitting = int(rounds * _SECONDS_OF_A_CALL / max(seconds, 1e-9))
        self.rounds = max(1, min(fitting, _MAX_GROWTH * self.rounds))
        self.rounds = from_writer(min(self.rounds, np.iinfo(np.int32).max))
