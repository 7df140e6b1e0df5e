"""The software and the device that produced results."""

import platform
from importlib import metadata

import jax

_PACKAGES = ("resolvent", "jax", "jaxlib", "numpy")


def versions() -> dict[str, str]:
    """The versions of the packages that determine results, and of Python."""
    return {package: metadata.version(package) for package in _PACKAGES} | {"python": platform.python_version()}


def device() -> str:
    """The first device and the backend."""
    return f"{jax.devices()[0].device_kind} ({jax.default_backend()})"
