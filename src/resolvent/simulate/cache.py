"""Compiled programs are kept from one process to the next: of a short run, compiling is most.

JAX's own persistent cache does it; here it is only given a folder, unless the user has given it one or has switched it
off (``JAX_COMPILATION_CACHE_DIR``, ``JAX_ENABLE_COMPILATION_CACHE=false``).
"""

import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import platformdirs
from jax.experimental.compilation_cache import compilation_cache

__all__ = ["cache_folder", "keep_compiled"]

_MAX_BYTES = 2**30


def cache_folder() -> Path:
    """Where compiled programs are kept: ``xla`` in the user's cache folder for resolvent."""
    return platformdirs.user_cache_path("resolvent") / "xla"


def keep_compiled() -> None:
    """Let JAX keep compiled programs in ``cache_folder()``, up to 1 GiB, the least recently used going first."""
    now = jax.config.values
    if now["jax_compilation_cache_dir"] is not None or not now["jax_enable_compilation_cache"]:
        return
    setting: Callable[..., None] = jax.config.update
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        warnings.warn(f"compiled programs cannot be kept in {folder}: {error}; every run compiles again. "
                      "JAX_COMPILATION_CACHE_DIR names another folder", stacklevel=3)
        setting("jax_enable_compilation_cache", False)
        return
    setting("jax_compilation_cache_max_size", _MAX_BYTES)
    # Programs this small are not worth keeping by JAX's defaults, but there are dozens of them in a run.
    setting("jax_persistent_cache_min_compile_time_secs", 0)
    setting("jax_persistent_cache_min_entry_size_bytes", -1)
    reset: Callable[[], None] = compilation_cache.reset_cache
    reset()  # it may have been looked for, and not found, by an earlier compilation
    setting("jax_compilation_cache_dir", str(folder))
