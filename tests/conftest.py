"""Compile fast, compile once, free compiled programs: compiling takes most of the time and the memory of the tests."""

import os
from pathlib import Path

from resolvent.xla.versions import is_tested_version

_FAST = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1",
         "--xla_llvm_disable_expensive_passes=true"]
if is_tested_version():  # saves half the time; a compiler that does not know a flag stops
    _FAST.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FAST]).strip()
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")  # tests write nothing into the user's folders

import jax
import pytest

_TESTS_BETWEEN_CLEARS = 50
_tests_since_clear = 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """The tests of a file run in one process, which builds their fixtures and compiles their programs once.

    Those with the mark ``nightly`` run at night only.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
        if item.get_closest_marker("nightly") and "RESOLVENT_NIGHTLY" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="runs at night only: RESOLVENT_NIGHTLY is not set"))


def pytest_runtest_teardown(item, nextitem):
    """Free compiled programs between groups of tests.

    A process may have a limited number of memory maps, which thousands of programs exceed. The tests of a group share
    programs.
    """
    global _tests_since_clear
    _tests_since_clear += 1
    if _tests_since_clear >= _TESTS_BETWEEN_CLEARS and (nextitem is None or _group(nextitem) != _group(item)):
        jax.clear_caches()
        _tests_since_clear = 0


def _group(item):
    return item.get_closest_marker("xdist_group").args


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
