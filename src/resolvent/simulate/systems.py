"""Systems heterogeneity: a virtual clock, so that results can be read against seconds and bytes as well as rounds."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError

__all__ = ["VirtualClock"]


@dataclass(frozen=True)
class VirtualClock:
    """Seconds that a round would take if party k computed and communicated at speeds of its own.

    Party k makes speed_k gradient steps and moves rate_k bytes a second, both drawn once, lognormal around the medians.
    A round lasts as long as its slowest replying party takes to receive, work and reply:
    max over k of latency + (down + up) / rate_k + steps_k / speed_k. The clock measures and changes nothing: what slow
    parties leave undone is the participation's affair.

    Attributes:
        speed: median gradient steps per second.
        rate: median bytes per second, down and up.
        latency: seconds that a message and its reply take beside.
        speed_spread: standard deviation of the logarithm of the speeds; 0 makes all alike.
        rate_spread: standard deviation of the logarithm of the rates.
        seed: of the speeds and rates.
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

    def parties(self, numbers: Iterable[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Speed and rate of each of some parties: [M], [M]; a party's do not depend on the others."""
        normal = np.array([np.random.default_rng([self.seed, k]).normal(size=2) for k in numbers])
        speeds, rates = np.exp(normal * (self.speed_spread, self.rate_spread)).T
        return self.speed * speeds, self.rate * rates

    def seconds(self, index: NDArray[np.int_], alive: NDArray[np.bool_], steps: NDArray[np.floating],
                size: int) -> NDArray[np.float64]:
        """Seconds of each round, 0 where nobody replied: [R].

        Args:
            index: [R, C] who was in the cohort.
            alive: [R, C] whose reply counted.
            steps: [R, C] gradient steps that each made.
            size: bytes down and up for one party in a round.
        """
        there, which = np.unique(index, return_inverse=True)
        speed, rate = (values[which.reshape(index.shape)] for values in self.parties(there))
        each = self.latency + size / rate + steps / speed
        longest: NDArray[np.float64] = np.max(np.where(alive, each, 0.0), axis=1)
        return longest
