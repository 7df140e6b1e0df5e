"""Runs of a search or a sweep: the settings that they share with ``simulate``, and several of them at the same time."""

import inspect
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax
import numpy as np

from resolvent.errors import InputError, alternatives, check_range
from resolvent.simulator.run import simulate

_Outcome = TypeVar("_Outcome")

# The settings of a run, by the names that ``simulate`` gives them; its other arguments belong to one run only.
RUN_OPTIONS = tuple(name for name, parameter in inspect.signature(simulate).parameters.items()
                    if parameter.kind == parameter.KEYWORD_ONLY
                    and name not in ("rounds", "checkpoint", "resume", "on_evaluation", "progress", "name"))


def check_options(title: str, options: Collection[str], allowed: Sequence[str]) -> None:
    """Refuse what is no setting of the runs.

    Args:
        title: the name of the function, for the error.
        allowed: the settings that it takes.
    """
    for name in options:
        if name not in allowed:
            raise InputError(f"{title}({name}=...) is not a setting of its runs{alternatives(name, allowed)}")


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
