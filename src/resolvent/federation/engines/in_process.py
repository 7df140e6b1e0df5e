"""A federation in one process: every message is encoded and decoded, and each party has its own rows and folder.

The coordinator, the parties, the wire format and the stores are those of a real federation; only the transport is a
function call instead of a network.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.differential_privacy.parties import noise_parties
from resolvent.federation.protocol.events import Observer
from resolvent.federation.protocol.limits import Limits
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.protocol.stores import PartyStore, ServerStore
from resolvent.federation.protocol.transport import PartyHandler, Transport
from resolvent.federation.protocol.wire import EncodedMessage
from resolvent.federation.secure.primitives import local_identities
from resolvent.federation.secure.rules import SumRules
from resolvent.federation.secure.site import SecureSite
from resolvent.federation.server.coordinator import Coordinator, FederationResult
from resolvent.federation.site.party import Party
from resolvent.problem.problem import Problem


class InProcess(Transport):
    """A transport that calls the parties' handlers, one after the other.

    Args:
        handlers: name of a site -> function that answers its messages, such as ``Party.handle``.
    """

    def __init__(self, handlers: Mapping[str, PartyHandler]) -> None:
        self.parties = tuple(handlers)
        self.handlers = dict(handlers)

    @override
    def broadcast(self, messages: Mapping[str, EncodedMessage], *, deadline: float | None, quorum: int,
                  grace: float) -> dict[str, bytes]:
        return {name: self.handlers[name](bytes(message)) for name, message in messages.items()}

    @override
    def late_replies(self) -> list[tuple[str, bytes]]:
        return []


def run_in_process(algorithm: Algorithm, problem: Problem, *, rounds: int, folder: Path | str | None = None,
                   names: tuple[str, ...] | None = None, limits: Limits | None = None,
                   observe: Observer | None = None, secure: SumRules | None = None,
                   **settings: Any) -> FederationResult:
    """Run a federation in this process, with a party for each party of a problem.

    Args:
        algorithm: the algorithm.
        problem: the problem of all parties; each party gets its own rows only.
        rounds: number of rounds.
        folder: folder of the stores, ``server`` and one for each party; default: a temporary one. A run that is stored
            in it is resumed.
        names: names of the parties; default: ``party 0``, ``party 1``, ...
        limits: what each site allows.
        observe: a function that is called with each report.
        secure: of how many sites a secure sum must consist; None: the server sees the replies.
        settings: further arguments of ``Coordinator``: ``seed``, ``participation``, ``evaluate_every``, ``rules``,
            ``method``, ``lost_state``.

    Raises:
        FederationStoppedError: too few parties have answered.
        InputError: the arguments do not fit together.

    Example:
        >>> problem = rv.problems.QuadraticProblem.least_squares(np.ones((2, 4, 3)), np.ones((2, 4)))
        >>> result = run_in_process(rv.fedavg(rv.solvers.GD(0.1)), problem, rounds=2)
        >>> result.shared.shape
        (3,)
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return run_in_process(algorithm, problem, rounds=rounds, folder=temporary, names=names, limits=limits,
                                  observe=observe, secure=secure, **settings)
    names = names or tuple(f"party {k}" for k in range(problem.parties))
    stores = [PartyStore(Path(folder) / name) for name in names]
    run = None if secure is None else "in process"
    if secure is not None:
        secure = replace(secure, min_sites=max(secure.min_sites, noise_parties(algorithm)))
    sums = {} if secure is None or run is None else {
        name: SecureSite(name, run, Path(folder) / name, identity, secure, names)
        for name, identity in local_identities(names).items()}
    try:
        parties = {name: Party(algorithm, problem.of_party(k, is_padded=True), store, rounds=rounds, name=name,
                               method=settings.get("method", "algorithm"), limits=limits, policy=REHEARSAL,
                               secure=sums.get(name))
                   for k, (name, store) in enumerate(zip(names, stores, strict=True))}
        with ServerStore(Path(folder) / "server") as store:
            transport = InProcess({name: party.handle for name, party in parties.items()})
            # Those by which the parties weigh their replies; the sizes of a problem may be a multiple of them.
            samples = sum(int(problem.oracle(jnp.array(k)).samples) for k in range(problem.parties))
            coordinator = Coordinator(algorithm, problem, transport, store, rounds=rounds, policy=REHEARSAL, run=run,
                                      secure=secure, samples=samples, **settings)
            return coordinator.run(observe)
    finally:
        for store_of_party in stores:
            store_of_party.close()
