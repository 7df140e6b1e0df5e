"""The programs and the bytecode that the tests compile, kept in a folder from one run of the tests to the next one.

``RESOLVENT_COMPILED`` names another folder than ``.compiled``; if it is empty, nothing is kept. A missing folder is
made again.

JAX's persistent cache distinguishes programs, options of the compiler and versions of jaxlib. It does not distinguish
the instructions of the processor, and a program of another machine can end the process. So every combination of
versions, flags and processor has a folder of its own.

JAX writes a file of its cache in several steps, so that another process can read a part of it, and a killed process
leaves a part. So each process has a folder of links to the common files, and adds its new files to the common folder
when its tests are over. Processes that the tests start use no cache of programs: some are killed.
"""

import hashlib
import os
import platform
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

_MAX_BYTES = 2**29  # of a folder; programs of code that has changed since are not removed otherwise
_MIN_COMPILE_SECONDS = 0.02  # a smaller program takes as long to read as to compile
_SECONDS_OF_A_RUN = 86_400  # a folder of links that is older belongs to a process that was killed


def root():
    """The folder; None if nothing is kept."""
    name = os.environ.get("RESOLVENT_COMPILED", str(Path(__file__).parents[1] / ".compiled"))
    return Path(name).resolve() if name else None


def keep_bytecode():
    """Let Python write bytecode, outside the source folders, if it may not write it there.

    Without bytecode a process takes 5 s of CPU time instead of 2 to import the library and JAX.
    """
    if (folder := root()) and (sys.dont_write_bytecode or sys.pycache_prefix):
        sys.dont_write_bytecode = False
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class StoredPrograms:
    """JAX's persistent cache for this process.

    Attributes:
        common: the files of all processes.
        links: the links of this process to them, and its new files.
    """

    def __init__(self, folder):
        self.common = folder / key()
        self.common.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("process-*"):
            with suppress(OSError):  # another process removes it as well
                if path.stat().st_mtime < time.time() - _SECONDS_OF_A_RUN:
                    shutil.rmtree(path)
        self.links = Path(tempfile.mkdtemp(prefix="process-", dir=folder))
        for path in self.common.iterdir():
            _link(path, self.links)

    def enable(self):
        import jax  # not at the top: the environment is set before JAX is imported

        for name, value in {"enable_compilation_cache": True, "compilation_cache_dir": str(self.links),
                            "persistent_cache_min_compile_time_secs": _MIN_COMPILE_SECONDS,
                            "persistent_cache_min_entry_size_bytes": -1}.items():
            jax.config.update(f"jax_{name}", value)

    def close(self):
        """Add the new files to the common folder."""
        for path in self.links.iterdir():
            _link(path, self.common)
        with suppress(FileNotFoundError):  # another process has removed it
            if sum(path.stat().st_size for path in self.common.iterdir()) > _MAX_BYTES:
                shutil.rmtree(self.common, ignore_errors=True)
        shutil.rmtree(self.links, ignore_errors=True)


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


def _link(path, folder):
    with suppress(FileExistsError, FileNotFoundError):  # another process has added it, or removed all
        os.link(path, folder / path.name)
