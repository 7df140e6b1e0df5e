"""Privacy accounting of the Gaussian mechanism with Poisson sampling, by dp-accounting (extra ``privacy``)."""

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal, NamedTuple

from resolvent.errors import InputError, check_range

Accountant = Literal["pld", "rdp"]
_MAX_STEPS = 1_000_000
_MAX_NOISE = 1e6
_NOISE_TOLERANCE = 1e-3  # relative
# The losses of a privacy loss distribution are rounded up to multiples of an interval, so that every interval gives an
# upper bound. With this share of epsilon, epsilon is larger than with the smallest interval by less than 0.1 %, and a
# distribution has about 100,000 numbers, whatever epsilon is.
_SMALLEST_INTERVAL, _SHARE_OF_EPSILON = 1e-4, 1e-5
_COARSE = 10.0  # a search begins with intervals that are longer by this factor
_LARGE_EPSILON, _LOOSE = 10.0, 1.2


class Releases(NamedTuple):
    """The noisy sums that a party has released with one setting.

    Attributes:
        noise_multiplier: standard deviation of the noise of a sum with sensitivity 1.
        rate: probability with which a record is in a sum.
    """

    noise_multiplier: float
    rate: float
    steps: int


def gaussian_epsilon(noise_multiplier: float, rate: float, steps: int, delta: float,
                     accountant: Accountant = "pld", earlier: tuple[Releases, ...] = ()) -> float:
    """The epsilon for which ``steps`` noisy sums over Poisson samples are (epsilon, delta)-differentially private.

    Neighbouring data sets differ in one record, which is in the sums or not. Each sum has sensitivity 1 and Gaussian
    noise with standard deviation ``noise_multiplier``. Values are cached: one takes up to 2 s.

    Args:
        noise_multiplier: standard deviation of the noise, at least 0; 0 gives infinity.
        rate: probability with which a record is in a sample, in (0, 1].
        steps: number of sums, at least 0.
        delta: the delta of differential privacy, in (0, 1).
        accountant: ``pld``, privacy loss distributions, which is tight; or ``rdp``, Renyi differential privacy, an
            upper bound that older papers state. It is loose at large epsilon, about which it warns.
        earlier: sums that were released before, with other settings.

    Raises:
        InputError: a number is outside its range, or dp-accounting is not installed.

    References:
        Mironov, Talwar, Zhang: Renyi Differential Privacy of the Sampled Gaussian Mechanism, 2019.

        Koskela, Jalko, Honkela: Computing Tight Differential Privacy Guarantees Using FFT, AISTATS 2020.

        Balle, Wang: Improving the Gaussian Mechanism for Differential Privacy, ICML 2018, Theorem 8, for rate 1.
    """
    check_range("gaussian_epsilon", "[0, inf)", noise_multiplier=noise_multiplier, steps=steps)
    check_range("gaussian_epsilon", "(0, 1]", rate=rate)
    check_range("gaussian_epsilon", "(0, 1)", delta=delta)
    parts = _joined((*earlier, Releases(noise_multiplier, rate, steps)))
    epsilon = _epsilon(parts, delta, accountant)
    if accountant == "rdp" and _LARGE_EPSILON < epsilon < math.inf and epsilon > _LOOSE * (
            tight := _epsilon(parts, delta, "pld")):
        warnings.warn(f"accountant='rdp' bounds epsilon by {epsilon:.4g}, which is loose: accountant='pld', the "
                      f"default, bounds it by {tight:.4g}", stacklevel=2)
    return epsilon


def steps_within(epsilon: float, noise_multiplier: float, rate: float, delta: float,
                 accountant: Accountant = "pld", earlier: tuple[Releases, ...] = ()) -> int:
    """The largest number of steps whose ``gaussian_epsilon`` is at most ``epsilon``; at most a million."""
    def is_within(steps: int, coarseness: float = 1.0) -> bool:
        return _epsilon(_joined((*earlier, Releases(noise_multiplier, rate, steps))), delta, accountant,
                        coarseness) <= epsilon

    if not is_within(0):
        return 0
    bound = _largest(lambda steps: is_within(steps, _COARSE), 0, 1)
    return _largest(is_within, bound, max(1, bound // 64))


def _largest(is_within: Callable[[int], bool], low: int, stride: int) -> int:
    """The largest number of steps within a budget, at most a million, of which ``low`` is within it."""
    high = low + stride
    while high <= _MAX_STEPS and is_within(high):
        low, stride = high, 2 * stride
        high = low + stride
    high = min(high, _MAX_STEPS + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_within(middle) else (low, middle)
    return low


def noise_within(epsilon: float, rate: float, steps: int, delta: float, accountant: Accountant = "pld") -> float:
    """The smallest noise multiplier, to 0.1 %, whose ``gaussian_epsilon`` is at most ``epsilon``.

    Args:
        epsilon: positive.
        rate: probability with which a record is in a sample, in (0, 1].
        steps: number of sums, at least 1.
        delta: the delta of differential privacy, in (0, 1).
        accountant: ``pld`` or ``rdp``.

    Raises:
        InputError: a number is outside its range, no noise multiplier below a million is large enough, or dp-accounting
            is not installed.
    """
    check_range("noise_within", "(0, inf)", epsilon=epsilon)
    check_range("noise_within", "[1, inf)", steps=steps)
    check_range("noise_within", "(0, 1]", rate=rate)
    check_range("noise_within", "(0, 1)", delta=delta)

    # Renyi accounting bounds epsilon from above, also where there is little noise.
    def is_enough(noise: float, accountant: Accountant, coarseness: float = 1.0) -> bool:
        return _epsilon((Releases(noise, rate, steps),), delta, accountant, coarseness) <= epsilon

    upper = _smallest_noise(lambda noise: is_enough(noise, "rdp"), 0.0, None)
    if accountant == "rdp":
        return upper
    upper = _smallest_noise(lambda noise: is_enough(noise, accountant, _COARSE), 0.0, upper)
    low = 0.98 * upper
    low = 0.0 if is_enough(low, accountant) else low
    return _smallest_noise(lambda noise: is_enough(noise, accountant), low, upper)


def _smallest_noise(is_enough: Callable[[float], bool], low: float, high: float | None) -> float:
    """The smallest noise multiplier that is enough, by bisection between ``low`` and ``high``."""
    if high is None:
        high = 1.0
        while not is_enough(high):
            low, high = high, 2 * high
            if high > _MAX_NOISE:
                raise InputError(f"no noise multiplier below {_MAX_NOISE:g} is large enough: give a larger epsilon or "
                                 "delta, or fewer steps")
    while high - low > _NOISE_TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _joined(parts: tuple[Releases, ...]) -> tuple[Releases, ...]:
    """The same releases with one entry for each setting; without sums, none."""
    steps: dict[tuple[float, float], int] = {}
    for part in parts:
        if part.steps:
            setting = float(part.noise_multiplier), float(part.rate)
            steps[setting] = steps.get(setting, 0) + int(part.steps)
    return tuple(Releases(*setting, number) for setting, number in sorted(steps.items()))


@lru_cache(maxsize=4096)
def _epsilon(parts: tuple[Releases, ...], delta: float, accountant: Accountant, coarseness: float = 1.0) -> float:
    """The epsilon of releases, none of which has no steps; a larger ``coarseness`` is faster and less tight."""
    if not parts:
        return 0.0
    if any(part.noise_multiplier == 0 for part in parts):
        return math.inf
    library = _library()
    if accountant == "pld" and all(part.rate == 1 for part in parts):
        # Sums with noise z_i over all records are one sum with noise (sum of z_i^-2)^(-1/2).
        return float(library.get_epsilon_gaussian(sum(p.steps / p.noise_multiplier**2 for p in parts) ** -0.5, delta))
    from dp_accounting import pld, rdp
    with _without_warnings():
        if accountant == "rdp":
            return _composed(rdp.RdpAccountant(), library, parts, delta)
        interval = coarseness * max(_SMALLEST_INTERVAL, _SHARE_OF_EPSILON * _epsilon(parts, delta, "rdp"))
        return _composed(pld.PLDAccountant(value_discretization_interval=interval), library, parts, delta)


def _composed(ledger: Any, library: ModuleType, parts: tuple[Releases, ...], delta: float) -> float:
    for part in parts:
        event = library.GaussianDpEvent(part.noise_multiplier)
        if part.rate < 1:
            event = library.PoissonSampledDpEvent(part.rate, event)
        try:
            ledger.compose(library.SelfComposedDpEvent(event, part.steps))
        except OverflowError:  # so little noise that e^epsilon is no number
            return math.inf
    return float(ledger.get_epsilon(delta))


def _library() -> ModuleType:
    try:
        import dp_accounting
    except ImportError as error:
        raise InputError("privacy accounting needs dp-accounting, which is not installed: pip install "
                         "'resolvent[privacy]'") from error
    library: ModuleType = dp_accounting
    return library


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Without the library's messages about orders of Renyi divergence that it leaves out, which is always valid."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
