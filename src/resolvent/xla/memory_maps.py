"""Free compiled programs before a process has too many memory maps.

Linux limits the memory maps of a process (``vm.max_map_count``, 65,530 by default), and every compiled program needs
some. A process that compiles thousands of programs, such as a search over many algorithms, would end with "LLVM ERROR:
Unable to allocate section memory!".
"""

import gc
import itertools
from pathlib import Path

import jax

_MAPS, _LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_SHARE = 0.7  # of the limit
_EVERY = 20  # calls; counting takes up to 20 milliseconds, and a run needs about a hundred maps
_calls = itertools.count(1)


def free_programs_sometimes() -> bool:
    """Free all compiled programs if they have most of the possible memory maps; counts at every 20th call only.

    JAX compiles a freed program again when it is used.

    Returns:
        Whether programs were freed. On other systems than Linux, False: they have no such limit.
    """
    if next(_calls) % _EVERY:
        return False
    try:
        if _MAPS.read_bytes().count(b"\n") < _SHARE * int(_LIMIT.read_text()):
            return False
    except (OSError, ValueError):
        return False
    jax.clear_caches()  # type: ignore[no-untyped-call]
    gc.collect()
    return True
