"""Compile fast, and give compiled programs back: the compiler is most of the tests' time and memory."""

import os
from importlib.metadata import version
from itertools import count
from pathlib import Path

_FAST = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if version("jax").startswith("0.10."):  # half the time; a flag that a later compiler does not know would stop it
    _FAST.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FAST]).strip()
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")  # tests leave nothing in the user's folders

import jax
import pytest

_finished = count(1)


def pytest_runtest_teardown():
    # Thousands of programs in one process exhaust the memory maps that a process may have.
    if next(_finished) % 50 == 0:
        jax.clear_caches()


@pytest.fixture(scope="session")
def real_data():
    """The folder of real data. CI names it; a machine without has nothing to read, and says so."""
    folder = os.environ.get("RESOLVENT_DATA")
    if not folder:
        pytest.skip("RESOLVENT_DATA is not set: no folder with the real data (mnist/, emnist/, ...); see docs/data.md")
    if not Path(folder).is_dir():
        pytest.fail(f"RESOLVENT_DATA={folder!r} is no folder: set it to the one with the real data; see docs/data.md",
                    pytrace=False)
    return Path(folder)
