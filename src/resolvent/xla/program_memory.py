"""Free compiled programs that nothing can use any more, or of which a process has too many.

JAX keeps the programs of a function that is gone, because it finds them by the function itself: a model made of new
functions in each pass of a loop leaves about 20 MB. And Linux limits the memory maps of a process
(``vm.max_map_count``, 65,530 by default), of which every compiled program needs some: a process that compiles thousands
of programs, such as a search over many algorithms, would end with "LLVM ERROR: Unable to allocate section memory!".
"""

import gc
import itertools
import weakref
from pathlib import Path
from typing import Any

import jax

_MAPS, _LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_SHARE = 0.7  # of the limit
_EVERY = 20  # calls; counting takes up to 20 milliseconds, and a run needs about a hundred maps
_MAX_GONE = 12  # models that are gone, whose programs are kept: an equal model may come again
_calls = itertools.count(1)
_models: dict[Any, weakref.ref[Any]] = {}  # structure -> the last object of this structure that programs were made for

remembered: dict[Any, Any] = {}
"""Facts about compiled programs, by their structure. They are forgotten with the programs."""


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
