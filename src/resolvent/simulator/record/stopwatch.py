"""A stopwatch that separates compilation from the rest."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import jax

# Tracing, lowering and backend compilation, as JAX itself reports them.
_COMPILATION = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration",
                "/jax/core/compile/backend_compile_duration")
_compile_seconds = 0.0


def _add_compilation(event: str, duration_secs: float, **_: str | int) -> None:
    global _compile_seconds
    if event in _COMPILATION:
        _compile_seconds += duration_secs


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
