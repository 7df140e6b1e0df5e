"""Compile fast, compile once, free compiled programs: compiling takes most of the time and the memory of the tests."""

import ctypes
import gc
import os
from importlib.metadata import version
from pathlib import Path

import compiled_programs
import import_map
import nightly
import order

# A loop out of which nothing is moved is slower by little, and compiles faster. The pass that simplifies loops stays:
# it takes less time than it saves, a quarter of the compiler's.
_FAST = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1",
         "--xla_llvm_disable_expensive_passes=true",
         "--xla_disable_hlo_passes=while-loop-invariant-code-motion"]
if version("jaxlib").startswith("0.10."):  # saves half the time; a compiler that does not know a flag stops
    _FAST.append("--xla_cpu_use_fusion_emitters=false")
_FLAGS = os.environ.get("XLA_FLAGS", "").split()  # a worker of xdist inherits those of the first process
os.environ["XLA_FLAGS"] = " ".join([*_FLAGS, *(flag for flag in _FAST if flag not in _FLAGS)])
# Before JAX is imported, which reads the environment then: tests write nothing into the user's folders.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
compiled_programs.keep_bytecode()

import jax
import pytest
from hypothesis import settings

# A process may have 65,530 memory maps, where Linux has its default, and should use less than 3 GB. A clear takes 5 s
# of CPU time, with the programs that compile again.
_MAX_MEMORY_MAPS_AFTER_A_FILE = 35_000
_MAX_MEMORY_MAPS = 42_000
_MAX_MEGABYTES_AFTER_A_FILE = 2_300
_MAX_MEGABYTES = 2_700
_TESTS_BETWEEN_COUNTS = 10
# Tracing allocates hundreds of thousands of small objects, few of them in cycles: Python's default of 700 makes the
# collector take 6 % of the CPU time.
gc.set_threshold(20_000, 20, 50)


# At a commit a property has the same examples each time, so that a failure belongs to the change; at night others.
settings.register_profile("commit", derandomize=True)
settings.load_profile("default" if nightly.IS_NIGHT else "commit")

_TESTS = {import_map.ROOT / folder for folder in import_map.TESTS}
_AT_NIGHT = "runs at night only: RESOLVENT_NIGHTLY is not set"
_UNCHANGED = "runs at night, and if RESOLVENT_BASE is set and something that it needs differs from that commit"
_AFFECTED = import_map.affected_files()


def _is_affected(path):
    return _AFFECTED is not None and path in _AFFECTED


def _path_of(file):
    return file.relative_to(import_map.ROOT).as_posix()


def pytest_ignore_collect(collection_path, config):
    """Files of tests that do not concern the change; what the command line names runs."""
    if _AFFECTED is None or not import_map.is_test(_path_of(collection_path)):
        return None
    names_all_tests = {Path(argument).resolve() for argument in config.args} == _TESTS
    return True if names_all_tests and not _is_affected(_path_of(collection_path)) else None


def pytest_collection_modifyitems(items):
    """The longest files first; tests with the mark ``nightly`` or ``when_changed`` run when their time has come."""
    items[:] = order.longest_first(items)
    if nightly.IS_NIGHT:
        return
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.skip(reason=_AT_NIGHT))
        mark = item.get_closest_marker("when_changed")
        if mark and not any(map(_is_affected, mark.args or [_path_of(item.path)])):
            item.add_marker(pytest.mark.skip(reason=_UNCHANGED))


def pytest_collection_finish():
    # The collector does not look again at the tests and modules, which live as long as the process.
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """What was skipped and why, one line for each reason."""
    if _AFFECTED is not None:
        left = [path for folder in _TESTS for path in folder.rglob("test_*.py") if not _is_affected(_path_of(path))]
        terminalreporter.write_line(f"not run: {len(left)} files of tests; nothing that they need differs from "
                                    f"{os.environ['RESOLVENT_BASE']} (RESOLVENT_BASE)")
    reasons = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        reasons.setdefault(reason, []).append(report.nodeid.split("::")[0])
    for reason, files in sorted(reasons.items()):
        listed = f"{len(files)} tests" if reason in (_AT_NIGHT, _UNCHANGED) else ", ".join(sorted({*files}))
        terminalreporter.write_line(f"skipped: {listed}: {reason}")


class _FreedPrograms:
    """Frees compiled programs when they take much memory or have many memory maps, if possible after a file.

    Thousands of programs exceed the limits of the process. The tests of a file share programs, and all tests share
    those of single operations: after a clear they compile again.
    """

    def __init__(self):
        self.tests = 0

    def pytest_runtest_teardown(self, item, nextitem):
        if nextitem is None:  # the process ends
            return
        self.tests += 1
        is_last_of_file = nextitem.path != item.path
        if not is_last_of_file and self.tests % _TESTS_BETWEEN_COUNTS:
            return
        most_maps = _MAX_MEMORY_MAPS_AFTER_A_FILE if is_last_of_file else _MAX_MEMORY_MAPS
        most_megabytes = _MAX_MEGABYTES_AFTER_A_FILE if is_last_of_file else _MAX_MEGABYTES
        if _megabytes() > most_megabytes:
            _return_memory()  # that of the compiler, of which the programs are a part
        if _megabytes() > most_megabytes or _memory_maps() > most_maps:
            jax.clear_caches()
            gc.collect()
            _return_memory()


def pytest_configure(config):
    config.pluginmanager.register(_FreedPrograms())
    config.option.loadscopereorder = False  # pytest-xdist would start the files with the most tests first
    if folder := compiled_programs.root():
        compiled_programs.enable(folder)


def _memory_maps():
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:  # other systems have no such file, and no such limit
        return 0


def _megabytes():
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0


def _return_memory():
    """What is free goes back to the system; GNU's allocator keeps it otherwise, half of the memory of a process."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


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
