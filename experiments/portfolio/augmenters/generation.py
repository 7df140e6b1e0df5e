"""Synthetic years of all parties, each from an augmenter that is fitted to the party's own stocks only."""

import hashlib
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import platformdirs
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from experiments.portfolio.augmenters.augmenter import DAYS_PER_YEAR, Augmenter
from experiments.portfolio.augmenters.gan import GAN
from resolvent.errors import InputError
from resolvent.files import write_atomically

_VERSION = 2  # version of the files in the cache; files of other versions are not read
_MAX_PARTIES = 10  # parties that are fitted between two reports of the progress
_MIN_DAYS = 30  # days of real returns


def generate(augmenters: Sequence[Augmenter], closes: NDArray[np.float64], universes: NDArray[np.int64], *,
             years: int = 40, seed: int = 0, cache: Path | None = None,
             progress: Callable[[int, int], None] | None = None) -> NDArray[np.float32]:
    """Synthetic price relatives v_{t+1} / v_t for every party, in float32 [parties, years, 252, assets].

    Party k has the augmenter k mod len(augmenters), which is fitted to its own stocks on the days on which all of them
    were traded. Year i of party k depends on the seed, k and i, and on the party's prices; not on the number of parties
    or years.

    Args:
        augmenters: the augmenters, at least 1.
        closes: real closing prices [days, stocks]; NaN before a stock's first and after its last price.
        universes: the stocks of each party [parties, assets], as columns of ``closes``.
        years: number of years for each party.
        seed: seed of all random numbers.
        cache: a folder for results that took seconds to compute; default: ``augmented`` in the user's cache folder of
            resolvent.
        progress: function that is called with (parties done, parties in total).

    Raises:
        InputError: there is no augmenter, or a party has fewer than 30 days on which all of its stocks were traded.

    Example:
        >>> closes = np.exp(np.cumsum(0.01 * np.random.default_rng(0).normal(size=(300, 5)), axis=0))
        >>> portfolio.generate([portfolio.GBM()], closes, np.array([[0, 1], [3, 4]]), years=3).shape
        (2, 3, 252, 2)
    """
    if not augmenters:
        raise InputError("generate(augmenters) is empty: give at least 1")
    returns, first = _returns_of_parties(closes, universes)
    path = None
    if any(isinstance(augmenter, GAN) for augmenter in augmenters):  # the others take less than a second
        folder = platformdirs.user_cache_path("resolvent", appauthor=False) / "augmented" if cache is None else cache
        path = folder / f"{_digest(augmenters, returns, first, years, seed)}.npz"
        if (stored := _read(path, (len(universes), years, DAYS_PER_YEAR, universes.shape[1]))) is not None:
            return stored
    result = np.empty((len(universes), years, DAYS_PER_YEAR, universes.shape[1]), np.float32)
    report, done = progress or (lambda done, total: None), 0
    for number, augmenter in enumerate(augmenters):
        of_augmenter = np.arange(number, len(universes), len(augmenters))
        for parties in (of_augmenter[i:i + _MAX_PARTIES] for i in range(0, len(of_augmenter), _MAX_PARTIES)):
            report(done, len(universes))
            arguments = (jnp.asarray(values) for values in (returns[parties], first[parties], parties, seed))
            result[parties] = _years_of_parties(augmenter, *arguments, years=years)
            done += len(parties)
    report(done, len(universes))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, partial(_write, result=result))
    return result


def log_returns(closes: NDArray[np.float64], universe: Sequence[int]) -> NDArray[np.float64]:
    """The logarithmic returns of some stocks on the days on which all of them were traded."""
    prices = closes[:, list(universe)]
    is_traded = np.isfinite(prices).all(axis=1)
    returns: NDArray[np.float64] = np.diff(np.log(prices[is_traded]), axis=0)
    return returns


def _returns_of_parties(closes: NDArray[np.float64], universes: NDArray[np.int64]) -> tuple[
        NDArray[np.float32], NDArray[np.int64]]:
    """For each party, the returns of all days (0 before its stocks were all traded), and the first day that counts."""
    parties, assets = universes.shape
    result = np.zeros((parties, len(closes) - 1, assets), np.float32)
    first = np.empty(parties, np.int64)
    for k, universe in enumerate(universes):
        returns = log_returns(closes, universe)
        if len(returns) < _MIN_DAYS:
            raise InputError(f"party {k} has {len(returns)} days of returns on which all of its stocks were traded: it "
                             f"needs {_MIN_DAYS}; choose other stocks, or more days")
        first[k] = len(closes) - 1 - len(returns)
        result[k, first[k]:] = returns
    return result, first


@eqx.filter_jit
def _years_of_parties(augmenter: Augmenter, returns: Float[Array, "parties days m"], first: Int[Array, " parties"],
                      parties: Int[Array, " parties"], seed: Int[Array, ""],
                      *, years: int) -> Float[Array, "parties years 252 m"]:
    root = jax.random.key(seed)

    def of_party(returns: Array, first: Array, k: Array) -> Array:
        of_fit, of_years = jax.random.split(jax.random.fold_in(root, k))
        fitted = augmenter.fit(returns, of_fit, first)
        return jax.vmap(lambda i: fitted.sample(DAYS_PER_YEAR, jax.random.fold_in(of_years, i)))(jnp.arange(years))

    years_of_all: Array = jax.vmap(of_party)(returns, first, parties)
    return years_of_all


def _digest(augmenters: Sequence[Augmenter], *parts: Any) -> str:
    """SHA-256 of everything that the result depends on."""
    digest = hashlib.sha256(repr((_VERSION, list(augmenters))).encode())
    for part in parts:
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()


def _read(path: Path, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    """The years in a file of the cache; None if there is none, or it is damaged."""
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            years: NDArray[np.float32] = arrays["years"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return years if years.shape == shape and years.dtype == np.float32 else None


def _write(path: Path, result: NDArray[np.float32]) -> None:
    with path.open("wb") as file:
        np.savez(file, years=result)
