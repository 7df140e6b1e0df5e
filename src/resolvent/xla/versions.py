"""Which versions of JAX the techniques for CPUs were tested with. All knowledge of versions is in this module."""

import os

import jax
from jaxlib.version import __version_info__ as jaxlib_version

__all__ = ["is_tested_version", "on_cpu", "supports_call_metadata", "supports_rewrites"]

# Minor versions of JAX and jaxlib with which `tests/xla/compile_sweep.py` was run. Call metadata is not a public
# interface of XLA: any other version, older or newer, is used without it.
_TESTED_VERSIONS = frozenset([(0, 10)])


def on_cpu() -> bool:
    """Whether programs are compiled for a CPU."""
    return jax.default_backend() == "cpu"


def is_tested_version() -> bool:
    """Whether what rests on XLA's internals was tested with the installed JAX and jaxlib.

    It starts no backend, so that flags of XLA can be set after it.
    """
    return {jax.__version_info__[:2], jaxlib_version[:2]} <= _TESTED_VERSIONS


def supports_call_metadata() -> bool:
    """Whether the compiler obeys the metadata of ``small_call`` and ``no_inline``.

    It does for CPUs, in the tested versions. The environment variable ``RESOLVENT_SMALL_CALLS=0`` switches both off,
    for example to find out whether they cause a compiler error.
    """
    return is_tested_version() and os.environ.get("RESOLVENT_SMALL_CALLS") != "0" and on_cpu()


def supports_rewrites() -> bool:
    """Whether the operations of a program are rewritten (``rewrites``): on CPUs, in the tested versions.

    The environment variable ``RESOLVENT_REWRITES=0`` switches it off.
    """
    return is_tested_version() and os.environ.get("RESOLVENT_REWRITES") != "0" and on_cpu()
