"""The programs and the bytecode that the tests compile, kept in a folder from one run of the tests to the next one.

``RESOLVENT_COMPILED`` names another folder than ``.compiled``; if it is empty, nothing is kept. A missing folder is
made again.

JAX's persistent cache distinguishes programs, options of the compiler and versions of jaxlib. It does not distinguish
the instructions of the processor, and a program of another machine can end the process. So every combination of
versions, flags and processor has a folder of its own.

JAX writes a file of its cache in several steps, so that another process can read a part of it, and a killed process
leaves a part. So here a file gets its name when it is whole, and all workers share one folder while they run. Processes
that the tests start use no cache of programs: some are killed.
"""

import hashlib
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / ".compiled"
_MAX_BYTES = 2**29  # of a folder, before a run; programs of code that has changed since are not removed otherwise
_MIN_COMPILE_SECONDS = 0.02  # a smaller program takes as long to read as to compile


def root():
    """The folder; None if nothing is kept."""
    name = os.environ.get("RESOLVENT_COMPILED", str(_FOLDER))
    return Path(name).resolve() if name else None


def keep_bytecode():
    """Let Python write bytecode, outside the source folders, if it may not write it there.

    Without bytecode a process takes 5 s of CPU time instead of 2 to import the library and JAX. It is always kept in
    ``.compiled``: bytecode belongs to the files of one working tree, while several trees can share programs.
    """
    if root() and (sys.dont_write_bytecode or sys.pycache_prefix):
        sys.dont_write_bytecode = False
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(_FOLDER / "bytecode")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def enable(folder):
    """Let JAX keep the programs of this process in the folder for its versions, flags and processor."""
    import jax  # not at the top: the environment is set before JAX is imported
    from jax._src.lru_cache import LRUCache

    programs = folder / key()
    programs.mkdir(parents=True, exist_ok=True)
    if "PYTEST_XDIST_WORKER" not in os.environ:  # before the workers start
        remove_if_large(programs)
    LRUCache.put = put_whole
    for name, value in {"enable_compilation_cache": True, "compilation_cache_dir": str(programs),
                        "persistent_cache_min_compile_time_secs": _MIN_COMPILE_SECONDS,
                        "persistent_cache_min_entry_size_bytes": -1}.items():
        jax.config.update(f"jax_{name}", value)


def put_whole(cache, key, value):
    """Store a program: JAX's method writes the file under its name from the beginning."""
    with tempfile.NamedTemporaryFile(dir=cache.path, delete=False) as file:
        file.write(value)
    Path(file.name).rename(cache.path / f"{key}-cache")


def remove_if_large(folder):
    files = [*folder.iterdir()]
    if sum(path.stat().st_size for path in files) > _MAX_BYTES:
        for path in files:
            path.unlink(missing_ok=True)


def key():
    """A name for the versions, the flags of the compiler and the processor."""
    parts = [sys.version, *(version(name) for name in ("jax", "jaxlib", "numpy")), os.environ.get("XLA_FLAGS", ""),
             platform.machine(), *processor()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def processor(path=Path("/proc/cpuinfo")):
    """The model and the instructions of the first processor; its name on systems without /proc."""
    try:
        lines = path.read_text().split("\n\n")[0].splitlines()
    except OSError:
        return [platform.processor()]
    return [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
