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
"""

from typing import TYPE_CHECKING

from resolvent.algorithms.presets import (
    asynchronous,
    automatic,
    availability,
    baselines,
    compression,
    corrections,
    fairness,
    meta,
    mixing,
    operators,
    personal,
    representations,
    server,
    shared,
    structures,
)
from resolvent.algorithms.presets.asynchronous import *
from resolvent.algorithms.presets.automatic import *
from resolvent.algorithms.presets.availability import *
from resolvent.algorithms.presets.baselines import *
from resolvent.algorithms.presets.compression import *
from resolvent.algorithms.presets.corrections import *
from resolvent.algorithms.presets.fairness import *
from resolvent.algorithms.presets.meta import *
from resolvent.algorithms.presets.mixing import *
from resolvent.algorithms.presets.operators import *
from resolvent.algorithms.presets.personal import *
from resolvent.algorithms.presets.representations import *
from resolvent.algorithms.presets.server import *
from resolvent.algorithms.presets.shared import *
from resolvent.algorithms.presets.structures import *

# Not for type checkers: mypy reads no names from a sum of lists, and without the list it takes all of those above.
if not TYPE_CHECKING:
    __all__ = [name for module in (shared, personal, operators, baselines, corrections, fairness, meta, server,
                                   automatic, mixing, structures, representations,
                                   compression, availability, asynchronous) for name in module.__all__]
