"""NormLimit: any algorithm, with another limit: replies with a longer update do not count."""

import equinox as eqx
from typing_extensions import override

from resolvent.algorithms.combinators.combinator import Combinator
from resolvent.errors import InputError

__all__ = ["NormLimit"]


class NormLimit(Combinator):
    """The inner algorithm, in which a reply counts if its update is at most ``multiple`` times as long as the median.

    Without this combinator the multiple is 10,000. A reply that does not count is reported with the name of its party,
    in a simulation and over a network; see ``algorithms.admission`` for the rule. ``PrivateParties`` inside has no
    bound, because it clips.

    Attributes:
        inner: any algorithm.
        multiple: the largest norm that counts, in multiples of the median norm of the round; at least 1. None: every
            reply counts that is finite.

    Example:
        >>> algorithm = rv.combinators.NormLimit(rv.fedavg(rv.SGD(0.1)), multiple=20.0)
    """

    multiple: float | None = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.multiple is not None and not self.multiple >= 1:
            raise InputError(f"NormLimit(multiple={self.multiple}) must be at least 1: the median itself counts")

    @property
    @override
    def norm_multiple(self) -> float | None:
        return None if self.inner.norm_multiple is None else self.multiple
