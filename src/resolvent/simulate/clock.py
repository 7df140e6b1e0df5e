"""How much of the time was the compiler's."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import jax

__all__ = ["Stopwatch", "stopwatch"]

# Tracing, lowering and backend compilation, as JAX itself reports them.
_COMPILATION = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration",
                "/jax/core/compile/backend_compile_duration")
_spent = 0.0


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    global _spent
    if event in _COMPILATION:
        _spent += duration_secs


jax.monitoring.register_event_duration_secs_listener(_listen)


@dataclass
class Stopwatch:
    """Seconds of a stretch of work: in all, of these for compilation, and of all threads of this process together."""

    total: float = 0.0
    compile: float = 0.0
    cpu: float = 0.0

    @property
    def run(self) -> float:
        """Seconds that were not compilation."""
        return max(self.total - self.compile, 0.0)


@contextlib.contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Time a block of work; its results must be ready when the block ends."""
    watch = Stopwatch()
    start, before, cpu = time.perf_counter(), _spent, time.process_time()
    yield watch
    watch.total, watch.compile = time.perf_counter() - start, _spent - before
    watch.cpu = time.process_time() - cpu
