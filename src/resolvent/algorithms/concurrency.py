"""Whether an algorithm and a participation agree on how many parties work at the same time."""

from resolvent.algorithms.combinators.asynchronous import Asynchronous
from resolvent.algorithms.combinators.combinator import layers
from resolvent.algorithms.exchange import AlgorithmFunctions
from resolvent.algorithms.participation import Arrivals, Participation
from resolvent.errors import InputError


def check_concurrency(algorithm: AlgorithmFunctions, participation: Participation, parties: int) -> None:
    """Refuse arrivals at a server that waits for a cohort, and lanes that are others than those of the server."""
    servers = [layer for layer in layers(algorithm) if isinstance(layer, Asynchronous)]  # type: ignore[arg-type]
    if not isinstance(participation, Arrivals):
        if servers and servers[0].concurrency not in (None, parties):
            raise InputError(f"the algorithm has concurrency={servers[0].concurrency}, which needs replies that arrive "
                             f"one after the other: give participation=rv.participation.Arrivals(..., concurrency="
                             f"{servers[0].concurrency})")
        return
    if not servers:
        raise InputError("Arrivals are replies that arrive one after the other, and the server of this algorithm waits "
                         "for a cohort: use rv.fedasync, rv.fedbuff, rv.ca2fl or rv.combinators.Asynchronous")
    of_server, of_arrivals = (part.concurrency or parties for part in (servers[0], participation))
    if of_server != of_arrivals:
        raise InputError(f"the algorithm has concurrency={of_server} and Arrivals have {of_arrivals}: give both the "
                         "same number, so that the server knows with which version each party began")
