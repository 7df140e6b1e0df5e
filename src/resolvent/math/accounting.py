"""Privacy accounting of the Gaussian mechanism with Poisson sampling, by dp-accounting (extra ``privacy``)."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Literal

from resolvent.errors import InputError, check_range

__all__ = ["Accountant", "gaussian_epsilon", "noise_within", "steps_within"]

Accountant = Literal["pld", "rdp"]
_MAX_STEPS = 1_000_000
_MAX_NOISE = 1e6
_NOISE_TOLERANCE = 1e-3  # relative


def gaussian_epsilon(noise_multiplier: float, rate: float, steps: int, delta: float,
                     accountant: Accountant = "pld") -> float:
    """The epsilon for which ``steps`` noisy sums over Poisson samples are (epsilon, delta)-differentially private.

    Neighbouring data sets differ by one added or removed record. Each sum has sensitivity 1 and Gaussian noise with
    standard deviation ``noise_multiplier``.

    Args:
        noise_multiplier: standard deviation of the noise, at least 0; 0 gives infinity.
        rate: probability with which a record is in a sample, in (0, 1].
        steps: number of sums, at least 0.
        delta: the delta of differential privacy, in (0, 1).
        accountant: ``pld``, privacy loss distributions, which is tight; or ``rdp``, Renyi differential privacy, an
            upper bound that older papers state.

    Raises:
        InputError: a number is outside its range, or dp-accounting is not installed.

    References:
        Mironov, Talwar, Zhang: Renyi Differential Privacy of the Sampled Gaussian Mechanism, 2019.

        Koskela, Jalko, Honkela: Computing Tight Differential Privacy Guarantees Using FFT, AISTATS 2020.
    """
    check_range("gaussian_epsilon", "[0, inf)", noise_multiplier=noise_multiplier, steps=steps)
    check_range("gaussian_epsilon", "(0, 1]", rate=rate)
    check_range("gaussian_epsilon", "(0, 1)", delta=delta)
    if steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return float("inf")
    library = _library()
    event = library.GaussianDpEvent(noise_multiplier)
    if rate < 1:
        event = library.PoissonSampledDpEvent(rate, event)
    with _without_warnings():
        ledger = _accountant(accountant).compose(library.SelfComposedDpEvent(event, steps))
        return float(ledger.get_epsilon(delta))


def steps_within(epsilon: float, noise_multiplier: float, rate: float, delta: float,
                 accountant: Accountant = "pld") -> int:
    """The largest number of steps whose ``gaussian_epsilon`` is at most ``epsilon``; at most a million."""
    low, high = 0, 1
    while high <= _MAX_STEPS and gaussian_epsilon(noise_multiplier, rate, high, delta, accountant) <= epsilon:
        low, high = high, 2 * high
    high = min(high, _MAX_STEPS + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if gaussian_epsilon(noise_multiplier, rate, middle, delta, accountant) <= epsilon:
            low = middle
        else:
            high = middle
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
    # Renyi accounting bounds epsilon from above and is fast, also where there is little noise.
    upper = _smallest_noise(lambda noise: gaussian_epsilon(noise, rate, steps, delta, "rdp") <= epsilon, 0.0, None)
    if accountant == "rdp":
        return upper
    return _smallest_noise(lambda noise: gaussian_epsilon(noise, rate, steps, delta, accountant) <= epsilon,
                           upper / 2, upper)


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


def _accountant(name: Accountant) -> Any:
    from dp_accounting import pld, rdp
    return pld.PLDAccountant() if name == "pld" else rdp.RdpAccountant()
