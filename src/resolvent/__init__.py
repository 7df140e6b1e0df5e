"""Resolvent: federated optimization as exact compositions of a few mathematical parts, on JAX.

The top level has what most programs need: the algorithms under their papers' names, ``simulate``, local solvers, data
sets and models. Parts are in namespaces: ``aggregators``, ``arguments``, ``attacks``, ``callbacks``, ``codecs``,
``combinators``, ``datasets``, ``errors``, ``experiment_files``, ``files``, ``keys``, ``losses``, ``metrics``,
``models``, ``participation``, ``partitions``, ``penalties``, ``plots``, ``privacy``, ``problems``, ``schedulers``,
``schedules``, ``shifts``, ``solvers`` and ``statistics``.

The names are imported at the first use of any of them, so that the command line answers without importing JAX.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resolvent.algorithms.presets import *
    from resolvent.api import *

__version__ = "0.3.0"

# Functions that are imported when they are first used: few programs need them.
_LATER = {"Study": "resolvent.comparisons.study.study", "check": "resolvent.comparisons.experiment.data_check",
          "compare": "resolvent.comparisons.runs.compare",
          "describe": "resolvent.comparisons.description.describe",
          "regress": "resolvent.comparisons.regression.regress",
          "survival": "resolvent.comparisons.survival.survive",
          "sweep": "resolvent.comparisons.tuning.sweep", "tune": "resolvent.comparisons.tuning.tune"}

# What has moved out of the package -> where it is.
_MOVED = {"portfolio": "it is experiments/portfolio of the repository: `from experiments import portfolio` in a clone"}


if not TYPE_CHECKING:  # for a type checker a module with a __getattr__ has every name
    def __getattr__(name):
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in _MOVED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}: {_MOVED[name]}")
        if find_spec(f"resolvent.{name}"):
            return import_module(f"resolvent.{name}")
        if name in _LATER:
            return getattr(import_module(_LATER[name]), name)
        api = import_module("resolvent.api")
        names = globals()
        names.update({public: vars(api)[public] for public in ("__all__", *api.__all__) if public in vars(api)})
        if name not in names:  # Python suggests a similar name from the name and the module
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        return names[name]


def __dir__() -> list[str]:
    return sorted([*import_module("resolvent.api").__all__, "__version__"])
