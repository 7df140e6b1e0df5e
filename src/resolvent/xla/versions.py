"""Which versions of JAX the techniques for CPUs need. All knowledge of versions is in this module."""

import os

import jax

__all__ = ["on_cpu", "supports_call_metadata"]

# The metadata of `small_call` and `no_inline` was tested with JAX and jaxlib 0.10.2. No earlier minor version was
# tested.
_CALL_METADATA_SINCE = (0, 10)


def on_cpu() -> bool:
    """Whether programs are compiled for a CPU."""
    return jax.default_backend() == "cpu"


def supports_call_metadata() -> bool:
    """Whether the compiler obeys the metadata of ``small_call`` and ``no_inline``.

    It does for CPUs, in the tested versions. The environment variable ``RESOLVENT_SMALL_CALLS=0`` switches both off,
    for example to find out whether they cause a compiler error.
    """
    return (on_cpu() and jax.__version_info__ >= _CALL_METADATA_SINCE
            and os.environ.get("RESOLVENT_SMALL_CALLS") != "0")
