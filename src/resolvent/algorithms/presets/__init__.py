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

from resolvent.algorithms.presets import (
    automatic,
    baselines,
    compression,
    corrections,
    meta,
    mixing,
    operators,
    personal,
    relaxed,
    robustness,
    server,
    shared,
    structures,
)
from resolvent.algorithms.presets.automatic import *
from resolvent.algorithms.presets.baselines import *
from resolvent.algorithms.presets.compression import *
from resolvent.algorithms.presets.corrections import *
from resolvent.algorithms.presets.meta import *
from resolvent.algorithms.presets.mixing import *
from resolvent.algorithms.presets.operators import *
from resolvent.algorithms.presets.personal import *
from resolvent.algorithms.presets.relaxed import *
from resolvent.algorithms.presets.robustness import *
from resolvent.algorithms.presets.server import *
from resolvent.algorithms.presets.shared import *
from resolvent.algorithms.presets.structures import *

__all__: list[str] = []
__all__ += shared.__all__
__all__ += personal.__all__
__all__ += operators.__all__
__all__ += relaxed.__all__
__all__ += baselines.__all__
__all__ += corrections.__all__
__all__ += meta.__all__
__all__ += server.__all__
__all__ += robustness.__all__
__all__ += automatic.__all__
__all__ += mixing.__all__
__all__ += structures.__all__
__all__ += compression.__all__
