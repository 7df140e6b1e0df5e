"""How many rounds a compiled call runs: calls of about half a second show progress and allow checkpoints in time.

The number of rounds is an argument of the compiled function, so the division into calls changes no bit of a result.
"""

import numpy as np

from resolvent.simulator.mesh import from_writer

_SECONDS_OF_A_CALL = 0.5
_MAX_GROWTH = 4


class Pace:
    """Chooses the number of rounds of the next call from the seconds of the last one.

    Attributes:
        rounds: maximum number of rounds of the next call. The first call has one round.
    """

    def __init__(self) -> None:
        self.rounds = 1

    def add(self, rounds: int, seconds: float) -> None:
        """Use the measurement of a call: its number of rounds, and its seconds without compilation.

        With several processes, all use the numbers of the first one, because they must run the same calls.
        """
        fitting = int(rounds * _SECONDS_OF_A_CALL / max(seconds, 1e-9))
        self.rounds = max(1, min(fitting, _MAX_GROWTH * self.rounds))
        self.rounds = from_writer(min(self.rounds, np.iinfo(np.int32).max))
