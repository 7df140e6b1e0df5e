"""The papers' algorithms under the papers' names: each a plain function that returns a composition."""

from resolvent.algorithms.presets import (
    automatic,
    baselines,
    meta,
    mixing,
    operators,
    personal,
    relaxed,
    robustness,
    server,
    shared,
)
from resolvent.algorithms.presets.automatic import *
from resolvent.algorithms.presets.baselines import *
from resolvent.algorithms.presets.meta import *
from resolvent.algorithms.presets.mixing import *
from resolvent.algorithms.presets.operators import *
from resolvent.algorithms.presets.personal import *
from resolvent.algorithms.presets.relaxed import *
from resolvent.algorithms.presets.robustness import *
from resolvent.algorithms.presets.server import *
from resolvent.algorithms.presets.shared import *

__all__: list[str] = []
__all__ += shared.__all__
__all__ += personal.__all__
__all__ += operators.__all__
__all__ += relaxed.__all__
__all__ += baselines.__all__
__all__ += meta.__all__
__all__ += server.__all__
__all__ += robustness.__all__
__all__ += automatic.__all__
__all__ += mixing.__all__
