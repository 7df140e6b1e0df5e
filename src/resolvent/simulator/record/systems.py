"""Systems heterogeneity: the bytes of messages, and a virtual clock, which measures a run in simulated seconds."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resolvent.algorithms.description import Description
from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError
from resolvent.math.codecs import wire_bits

__all__ = ["MessageBytes", "VirtualClock", "message_bytes"]


@dataclass(frozen=True)
class VirtualClock(CheckedArguments):
    """The seconds that a round would take if each party computed and communicated at its own speed.

    Party k makes speed_k gradient steps and transfers rate_k bytes per second. Both are drawn once, from lognormal
    distributions around the medians. A round lasts as long as the slowest replying party needs to receive, work and
    reply: max over k of latency + (down + up) / rate_k + steps_k / speed_k. The clock only measures: the partial work
    of slow parties is set by the participation (``Stragglers``).

    Attributes:
        speed: median gradient steps per second.
        rate: median bytes per second, down and up.
        latency: additional seconds of a message and its reply.
        speed_spread: standard deviation of the logarithm of the speeds; with 0 all speeds are equal.
        rate_spread: standard deviation of the logarithm of the rates.
        seed: seed of the speeds and rates.

    Raises:
        InputError: a speed or rate is not positive, or another number is negative.

    Example:
        >>> clock = rv.VirtualClock(speed=50.0, latency=0.1, speed_spread=0.0, rate_spread=0.0)
        >>> clock.parties([0, 1])[0].tolist()
        [50.0, 50.0]
    """

    speed: float = 100.0
    rate: float = 1e6
    latency: float = 0.0
    speed_spread: float = 0.5
    rate_spread: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.speed > 0 and self.rate > 0):
            raise InputError(f"VirtualClock(speed={self.speed}, rate={self.rate}) must be positive")
        if not min(self.latency, self.speed_spread, self.rate_spread, self.seed) >= 0:
            raise InputError(f"VirtualClock: latency={self.latency}, speed_spread={self.speed_spread}, rate_spread="
                             f"{self.rate_spread} and seed={self.seed} must not be negative")

    def parties(self, ids: Iterable[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The speeds and the rates of these parties: [M], [M]; they do not depend on the other parties."""
        normal = np.array([np.random.default_rng([self.seed, k]).normal(size=2) for k in ids])
        speeds, rates = np.exp(normal * (self.speed_spread, self.rate_spread)).T
        return self.speed * speeds, self.rate * rates

    def job_seconds(self, parties: int, steps: ArrayLike, message_bytes: int) -> NDArray[np.float64]:
        """[N] seconds that each party needs to receive, to work and to reply: the ``seconds`` of ``Arrivals``.

        Args:
            parties: N.
            steps: number of gradient steps of a job; or [N], one number for each party.
            message_bytes: bytes that one party receives and sends.

        Example:
            >>> clock = rv.VirtualClock(speed=50.0, rate=1000.0, speed_spread=0.0, rate_spread=0.0)
            >>> clock.job_seconds(3, steps=[50, 100, 150], message_bytes=500).tolist()
            [1.5, 2.5, 3.5]
        """
        speed, rate = self.parties(range(parties))
        seconds: NDArray[np.float64] = self.latency + message_bytes / rate + np.asarray(steps) / speed
        return seconds

    def seconds(self, index: NDArray[np.int_], arrived: NDArray[np.bool_], steps: NDArray[np.floating],
                message_bytes: int) -> NDArray[np.float64]:
        """[R] seconds of each round; 0 for a round without a reply.

        Args:
            index: [R, C] ids of the parties in the cohort.
            arrived: [R, C] whether the party's reply arrived.
            steps: [R, C] number of gradient steps of each party.
            message_bytes: bytes that one party receives and sends in a round.
        """
        ids, position = np.unique(index, return_inverse=True)
        speed, rate = (values[position.reshape(index.shape)] for values in self.parties(ids))
        seconds = self.latency + message_bytes / rate + steps / speed
        longest: NDArray[np.float64] = np.max(np.where(arrived, seconds, 0.0), axis=1)
        return longest


class MessageBytes(NamedTuple):
    """Bytes of one party's messages in a round, over all phases.

    Attributes:
        down: bytes that the server sends to the party.
        up: bytes that the party replies.
    """

    down: int
    up: int


def message_bytes(description: Description) -> MessageBytes:
    """Bytes that one party receives and sends in a round; encoded arrays count in their wire format."""
    return MessageBytes(*(-(-wire_bits(part) // 8) for part in (description.messages, description.replies)))
