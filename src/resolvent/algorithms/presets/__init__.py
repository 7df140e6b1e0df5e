"""The papers' algorithms under the papers' names: plain functions that return a composition of the library's parts.

The docstrings share one notation. f_k is the loss of party k, lambda_k = n_k/n its share of all samples, w_k its
model, and w~ the shared model. The *average loss* is f(w) = sum_k lambda_k f_k(w). ``<-`` assigns the next value.
"solve F from v" is the result of the local solver on the objective F, started at v. "mean of w_k" is the weighted mean
over the parties that reply.

Every docstring has these paragraphs, which ``resolvent list`` and the site read:

* Problem: the objective that the fixed points solve.
* Update: one round.
* Communication: the number of models that a party receives (down) and sends (up) in a round, and what it stores.
* Defaults: the default values and the reasons for them.
* Use when: the situation for which the method is suited.

The modules are imported when a name is first used: an experiment file needs those of the presets that it names.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resolvent.algorithms.presets.asynchronous import *
    from resolvent.algorithms.presets.automatic import *
    from resolvent.algorithms.presets.availability import *
    from resolvent.algorithms.presets.baselines import *
    from resolvent.algorithms.presets.compression import *
    from resolvent.algorithms.presets.corrections import *
    from resolvent.algorithms.presets.fairness import *
    from resolvent.algorithms.presets.malicious import *
    from resolvent.algorithms.presets.meta import *
    from resolvent.algorithms.presets.mixing import *
    from resolvent.algorithms.presets.operators import *
    from resolvent.algorithms.presets.personal import *
    from resolvent.algorithms.presets.representations import *
    from resolvent.algorithms.presets.server import *
    from resolvent.algorithms.presets.shared import *
    from resolvent.algorithms.presets.structures import *

_MODULES = ("shared", "malicious", "personal", "operators", "baselines", "corrections", "fairness", "meta", "server",
            "automatic", "mixing", "structures", "representations", "compression", "availability", "asynchronous")

if not TYPE_CHECKING:  # for a type checker a module with a __getattr__ has every name
    def __getattr__(name):
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        modules = [import_module(f"{__name__}.{module}") for module in _MODULES]
        names = globals()
        names["__all__"] = [public for module in modules for public in module.__all__]
        names.update({public: getattr(module, public) for module in modules for public in module.__all__})
        if name not in names:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return names[name]
