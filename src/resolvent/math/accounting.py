"""Privacy accounting of the Gaussian mechanism with Poisson sampling, by dp-accounting (extra ``privacy``)."""

from types import ModuleType
from typing import Any, Literal

from resolvent.errors import InputError, check_range

__all__ = ["Accountant", "gaussian_epsilon", "steps_within"]

Accountant = Literal["pld", "rdp"]
_MAX_STEPS = 1_000_000


def gaussian_epsilon(noise_multiplier: float, rate: float, steps: int, delta: float,
                     accountant: Accountant = "pld") -> float:
    """The epsilon for which ``steps`` noisy sums over Poisson samples are (epsilon, delta)-differentially private.

    Neighbouring data sets differ by one added or removed record. Each sum has sensitivity 1 and Gaussian noise with
    standard deviation ``noise_multiplier``.

    Args:
        noise_multiplier: at least 0; 0 gives infinity.
        rate: probability with which a record is in a sample, in (0, 1].
        steps: number of sums, at least 0.
        delta: in (0, 1).
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


def _library() -> ModuleType:
    try:
        import dp_accounting
    except ImportError as error:
        raise InputError("privacy accounting needs dp-accounting, which is not installed: pip install "
                         "'resolvent[privacy]'") from error
    library: ModuleType = dp_accounting
    return library


def _accountant(name: Accountant) -> Any:
    from dp_accounting import pld, rdp
    return pld.PLDAccountant() if name == "pld" else rdp.RdpAccountant()
