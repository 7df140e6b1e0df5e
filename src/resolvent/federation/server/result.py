"""The end of a run of one method at the server."""

from typing import TYPE_CHECKING, NamedTuple

from resolvent.algorithms.algorithm import ServerState
from resolvent.federation.protocol.reports import Report
from resolvent.federation.protocol.stores import ServerRecord
from resolvent.math.tree import Vector

if TYPE_CHECKING:
    import pandas as pd


class FederationResult(NamedTuple):
    """The end of a run.

    Attributes:
        state: the server's state.
        shared: the shared model; None if the algorithm has none.
        metrics: a table with the columns of the metrics of ``simulate``: scores, replies and refused replies.
        reports: all reports of the run, in order.
        record: the server's record: numbers of samples, bytes in both directions, parties that restarted.
    """

    state: ServerState
    shared: Vector | None
    metrics: "pd.DataFrame"
    reports: tuple[Report, ...]
    record: ServerRecord
