"""Compile fast, and give compiled programs back: the compiler is most of the tests' time and memory."""

import os
from itertools import count

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()

os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")  # tests leave nothing in the user's folders

import jax

_finished = count(1)


def pytest_runtest_teardown():
    # Thousands of programs in one process exhaust the memory maps that a process may have.
    if next(_finished) % 50 == 0:
        jax.clear_caches()
