"""Where compiled programs are kept: in a folder for later processes, and in memory as long as they are of use.

Compilation takes most of the time of a short run, so JAX's persistent cache has a folder. The user's own settings are
respected: another folder (``JAX_COMPILATION_CACHE_DIR``) or no cache (``JAX_ENABLE_COMPILATION_CACHE=false``).

JAX keeps the programs of a function that is gone, because it finds them by the function itself: a model made of new
functions in each pass of a loop leaves about 20 MB. And Linux limits the memory maps of a process
(``vm.max_map_count``, 65,530 by default), of which every compiled program needs some: a process that compiles thousands
of programs, such as a search over many algorithms, would end with "LLVM ERROR: Unable to allocate section memory!".
"""

import gc
import itertools
import os
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import platformdirs
from jax.experimental.compilation_cache import compilation_cache

# JAX reads the size and the time of every stored program whenever it stores another one, and holds a lock meanwhile:
# 0.2 s of CPU with 5,900 programs. So the folder is small, and programs that compile in a moment are not stored.
_MAX_BYTES = 2**28
_THRESHOLDS = {  # JAX's setting -> its default, and the library's value
    "jax_persistent_cache_min_compile_time_secs": (1.0, 0.05),
    "jax_persistent_cache_min_entry_size_bytes": (0, -1),
}

_MAPS, _LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_SHARE = 0.7  # of the limit
_EVERY = 20  # calls; counting takes up to 20 milliseconds, and a run needs about a hundred maps
_MAX_GONE = 12  # models that are gone, whose programs are kept: an equal model may come again
_calls = itertools.count(1)
_models: dict[Any, weakref.ref[Any]] = {}  # structure -> the last object of this structure that programs were made for

remembered: dict[Any, Any] = {}
"""Facts about compiled programs, by their structure. They are forgotten with the programs."""


def enable_compilation_cache() -> None:
    """Let JAX store compiled programs in the folder ``xla`` of the user's cache folder of resolvent.

    They take 256 MiB at most; the least recently used are removed. A folder of the user's own has no limit.
    """
    settings = jax.config.values
    if not settings["jax_enable_compilation_cache"]:
        return
    update: Callable[..., None] = jax.config.update
    # JAX does not store programs this small by default, but a run has dozens of them.
    for name, (default, value) in _THRESHOLDS.items():
        if settings[name] == default and name.upper() not in os.environ:
            update(name, value)
    if settings["jax_compilation_cache_dir"] is not None:
        return
    folder = platformdirs.user_cache_path("resolvent") / "xla"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        warnings.warn(f"compiled programs cannot be stored in {folder}: {error}; every run compiles again. Set "
                      "JAX_COMPILATION_CACHE_DIR to another folder", stacklevel=3)
        update("jax_enable_compilation_cache", False)
        return
    update("jax_compilation_cache_max_size", _MAX_BYTES)
    reset: Callable[[], None] = compilation_cache.reset_cache
    reset()  # an earlier compilation may have looked for the cache, and JAX remembers that there was none
    update("jax_compilation_cache_dir", str(folder))


def free_programs_sometimes(model: Any) -> bool:
    """Free all compiled programs if they have most of the possible memory maps, or if those of many models are useless.

    JAX compiles a freed program again when it is used. Memory maps are counted at every 20th call only, and on Linux
    only: other systems have no such limit.

    Args:
        model: the pytree for which programs are compiled next. When it is gone, nothing can use its programs, unless
            another one of the same structure is made.

    Returns:
        Whether programs were freed.
    """
    structure = jax.tree.structure(model)
    _models[structure] = weakref.ref(model)
    if sum(known() is None for known in _models.values()) <= _MAX_GONE and not _has_most_maps():
        return False
    free_programs()
    _models[structure] = weakref.ref(model)
    return True


def free_programs() -> None:
    """Free all compiled programs."""
    jax.clear_caches()  # type: ignore[no-untyped-call]
    remembered.clear()
    _models.clear()
    gc.collect()


def _has_most_maps() -> bool:
    if next(_calls) % _EVERY:
        return False
    try:
        return _MAPS.read_bytes().count(b"\n") >= _SHARE * int(_LIMIT.read_text())
    except (OSError, ValueError):
        return False
