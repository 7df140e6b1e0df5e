"""Several runs of a search or a sweep at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax
import numpy as np

from resolvent.errors import check_range

_Outcome = TypeVar("_Outcome")


def in_jobs(calls: Sequence[Callable[[], _Outcome]], jobs: int) -> list[_Outcome]:
    """The outcomes of the calls, in their order.

    The calls run in threads, because XLA computes without Python's lock. The first one runs alone: it compiles what the
    others use as well.

    Args:
        jobs: number of calls that run at the same time.
    """
    check_range("jobs", "[1, inf)", jobs=jobs)
    has_double = bool(jax.dtypes.canonicalize_dtype(np.float64) == np.float64)

    def run(call: Callable[[], _Outcome]) -> _Outcome:
        with jax.enable_x64(has_double):  # each thread has a setting of its own
            return call()

    first = [run(call) for call in calls[:1 if jobs > 1 else len(calls)]]
    if len(first) == len(calls):
        return first
    with ThreadPoolExecutor(jobs) as pool:
        started = [pool.submit(run, call) for call in calls[1:]]
        try:
            return first + [future.result() for future in started]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
