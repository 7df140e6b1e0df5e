"""What rounds start from and what they return."""

from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm, PartyState, ServerState
from resolvent.algorithms.participation.rules import Participation


class Federation(eqx.Module):
    """The state of a federation: everything that the next round needs.

    Attributes:
        parties: the parties' states, leaves [N, ...]; of a ``PartySubset``, a row for each of its slots.
    """

    server: ServerState
    parties: PartyState


class Rounds(NamedTuple):
    """The rounds of a run: what those who hold its data and states read of its plan.

    Attributes:
        participation: draws the cohorts.
        seed: seed of all random numbers.
        total: number of rounds.
        every: rounds between evaluations.
        evaluated: [M] ids of the evaluated parties, ascending.
    """

    algorithm: Algorithm
    participation: Participation
    seed: int
    total: int
    every: int
    evaluated: NDArray[np.int32]


class RoundRecord(eqx.Module):
    """What one round records.

    Attributes:
        index: [C] ids of the parties in the cohort.
        counted: [C] whether the party's reply counted.
        invited: [C] whether a message was sent to the party.
        refused: [C] whether the party's reply was refused: it is not admitted, or the total weight of the
            replies was 0.
        party: name -> [C], a scalar of each party.
        server: name -> scalar.
    """

    index: Int[Array, " C"]
    counted: Bool[Array, " C"]
    invited: Bool[Array, " C"]
    refused: Bool[Array, " C"]
    party: dict[str, Array]
    server: dict[str, Array]


class Snapshot(NamedTuple):
    """The last aggregation of a chunk of rounds.

    Attributes:
        models: the cohort's models before the aggregation, leaves [C, ...].
    """

    record: RoundRecord
    models: PyTree[Any]
    server_before: ServerState


class Chunk(NamedTuple):
    """The result of a chunk of rounds.

    Attributes:
        record: the records, leaves [capacity, ...]; rows beyond the number of rounds are zero.
        snapshot: the last aggregation.
    """

    state: Federation
    record: RoundRecord
    snapshot: Snapshot
