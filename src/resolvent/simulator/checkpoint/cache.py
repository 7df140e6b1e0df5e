"""A folder for JAX's persistent compilation cache: compilation takes most of the time of a short run.

The user's own settings are respected: another folder (``JAX_COMPILATION_CACHE_DIR``) or no cache
(``JAX_ENABLE_COMPILATION_CACHE=false``).
"""

import os
import warnings
from collections.abc import Callable

import jax
import platformdirs
from jax.experimental.compilation_cache import compilation_cache

__all__ = ["enable_compilation_cache"]

# JAX reads the size and the time of every stored program whenever it stores another one, and holds a lock meanwhile:
# 0.2 s of CPU with 5,900 programs. So the folder is small, and programs that compile in a moment are not stored.
_MAX_BYTES = 2**28
_THRESHOLDS = {  # JAX's setting -> its default, and the library's value
    "jax_persistent_cache_min_compile_time_secs": (1.0, 0.05),
    "jax_persistent_cache_min_entry_size_bytes": (0, -1),
}


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
