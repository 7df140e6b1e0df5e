"""Compile fast and free compiled programs: compiling takes most of the time and the memory of the tests."""

import os
from itertools import count
from pathlib import Path

from resolvent.xla.versions import is_tested_version

_FAST = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if is_tested_version():  # saves half the time; a compiler that does not know a flag stops
    _FAST.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FAST]).strip()
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")  # tests write nothing into the user's folders

import jax
import pytest

_finished = count(1)


def pytest_runtest_teardown():
    # A process may have a limited number of memory maps, which thousands of compiled programs exceed.
    if next(_finished) % 50 == 0:
        jax.clear_caches()


@pytest.fixture(scope="session")
def real_data():
    """The folder of the real data; tests that need it are skipped if the environment variable is not set."""
    folder = os.environ.get("RESOLVENT_DATA")
    if not folder:
        pytest.skip("RESOLVENT_DATA is not set: no folder with the real data (mnist/, emnist/, ...); see docs/data.md")
    if not Path(folder).is_dir():
        pytest.fail(f"RESOLVENT_DATA={folder!r} is not a folder: set it to the folder with the real data; "
                    "see docs/data.md", pytrace=False)
    return Path(folder)
