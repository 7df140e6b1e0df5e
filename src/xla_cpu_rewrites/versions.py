"""Which versions of JAX the techniques for CPUs were tested with. All knowledge of versions is in this module."""

import contextlib
import functools
import hashlib
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

import jax
import platformdirs
from jaxlib.version import __version__ as jaxlib_name
from jaxlib.version import __version_info__ as jaxlib_version

# Minor versions of JAX and jaxlib with which the tests and the sweep over thousands of programs were run. Call metadata
# is not a public interface of XLA: other versions are used without it. Rewriting is plain JAX: other versions compare
# results first.
_TESTED_VERSIONS = frozenset([(0, 10)])
_TESTED = "0.10"
_VERSIONS = f"JAX {jax.__version__} and jaxlib {jaxlib_name}"

_proofs: list[Callable[[], str]] = []
_proves = ContextVar("_proves", default=False)


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

    It does for CPUs, in the tested versions; a warning says what another version costs. The environment variable
    ``XLA_CPU_SMALL_CALLS=0`` switches both off, for example to find out whether they cause a compiler error, and 1
    switches them on in any version.
    """
    setting = os.environ.get("XLA_CPU_SMALL_CALLS")
    if setting == "0" or not on_cpu():
        return False
    if not (is_tested_version() or setting == "1"):
        _warn(f"loops of small steps are slow with {_VERSIONS}: a logistic regression takes about 1.6 times as long, "
              f"because the compiler's call metadata was tested with JAX {_TESTED} only. Install jax=={_TESTED}.*, or "
              "try XLA_CPU_SMALL_CALLS=1 (0: no metadata, no warning)")
        return False
    return True


def supports_rewrites() -> bool:
    """Whether the operations of a program are rewritten (``rewrite``): on CPUs.

    In a version of JAX with which the tests were not run, a comparison of results comes first; its outcome is stored in
    the user's cache folder. A warning says what it costs if they differ. The environment variable
    ``XLA_CPU_REWRITES=0`` switches rewriting off.
    """
    if os.environ.get("XLA_CPU_REWRITES") == "0" or not on_cpu():
        return False
    if is_tested_version() or _proves.get() or not (obstacle := _obstacle()):
        return True
    _warn(f"the operations of networks are not rewritten with {_VERSIONS}: a convolutional network takes 11 to 44 "
          f"times as long. The cause: {obstacle}. Install jax=={_TESTED}.* (XLA_CPU_REWRITES=0: no warning)")
    return False


def prove_rewrites_by(proof: Callable[[], str]) -> None:
    """Name a comparison that untested versions need; it returns why rewriting cannot be used, or an empty text.

    While it runs, rewriting is on in its thread.
    """
    _proofs.append(proof)


@functools.cache
def _obstacle() -> str:
    """The outcome of the comparison, which one process makes for a version of JAX and of the code of this package."""
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py"))))
    name = f"{jax.__version__}-{jaxlib_name}-{code.hexdigest()[:16]}"
    file = platformdirs.user_cache_path("xla_cpu_rewrites") / name
    if file.is_file():
        return ""
    # Another thread has no trace, no precision and no mesh of this one, which may be tracing a user's program.
    with ThreadPoolExecutor(1) as thread:
        obstacle = thread.submit(_prove).result()
    if not obstacle:
        with contextlib.suppress(OSError):  # the next process compares again
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    return obstacle


def _prove() -> str:
    _proves.set(True)
    return next(filter(None, (proof() for proof in _proofs)), "")


@functools.cache
def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)
