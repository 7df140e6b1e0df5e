"""Compile fast, and give compiled programs back: the compiler is most of the tests' time and memory."""

import os
from importlib.metadata import version
from itertools import count

_FAST = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if version("jax").startswith("0.10."):  # half the time; a flag that a later compiler does not know would stop it
    _FAST.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FAST]).strip()
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")  # tests leave nothing in the user's folders

import jax

_finished = count(1)


def pytest_runtest_teardown():
    # Thousands of programs in one process exhaust the memory maps that a process may have.
    if next(_finished) % 50 == 0:
        jax.clear_caches()
