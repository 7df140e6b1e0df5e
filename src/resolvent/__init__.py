"""Resolvent: federated optimization as exact compositions of a few mathematical parts, on JAX.

The top level has what most programs need: the algorithms under their papers' names, ``simulate``, local solvers, data
sets and models. Parts are in namespaces: ``aggregators``, ``attacks``, ``codecs``, ``combinators``, ``metrics``,
``participation``, ``partitions``, ``penalties``, ``portfolio``, ``problems``, ``schedulers``, ``schedules``, ``shifts``
and ``solvers``.

The names are imported at the first use of any of them, so that the command line answers without importing JAX.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resolvent.api import *
    from resolvent.api import __all__ as __all__

__version__ = "0.1.0"

# Namespaces, and functions after a colon, that are imported when they are first used.
_LATER = {
    "compare": "resolvent.study.compare:compare",
    "metrics": "resolvent.problem.metrics",
    "portfolio": "resolvent.problem.portfolio",
    "privacy": "resolvent.algorithms.privacy",
    "sweep": "resolvent.study.tuning.sweep:sweep",
    "tune": "resolvent.study.tuning.tune:tune",
}


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec(f"resolvent.{name}"):
        return import_module(f"resolvent.{name}")
    if name in _LATER:
        module, _, function = _LATER[name].partition(":")
        return getattr(import_module(module), function) if function else import_module(module)
    api = import_module("resolvent.api")
    names = globals()
    names.update({public: getattr(api, public) for public in api.__all__ if public not in _LATER})
    names["__all__"] = api.__all__
    if name not in names:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return names[name]


def __dir__() -> list[str]:
    return sorted([*__getattr__("__all__"), "__version__"])
