"""Rules about single parties: gains of each party, and paired differences of their back-tests.

Two methods are compared on the same universes and days. "Better" means that the 95 % interval of the mean difference
over the parties is above 0. It is a stationary block bootstrap of the days, with blocks of 10 days on average and 2,000
draws.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import pairwise
from math import comb
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from experiments.curves import Curve, Item, Panels, between, rule
from experiments.portfolio import annual_return, deflated_sharpe_ratio, paired_difference, sharpe_ratio

Statistic = Literal["annual_return", "sharpe_ratio"]
_STATISTICS = {"annual_return": annual_return, "sharpe_ratio": sharpe_ratio}


@rule
def better(figure: Panels, panels: Sequence[str], methods: Sequence[str], than: Sequence[str],
           statistic: Statistic = "annual_return") -> list[Item]:
    """In back-tests, each method is better than each of ``than``. The number is the lower end of the interval."""
    return [_item(f"{m} - {other}", figure[p][m], figure[p][other], statistic)
            for p in panels for m in methods for other in than]


@rule
def better_of_panels(figure: Panels, panels: Sequence[str], than: str, methods: Sequence[str],
                     statistic: Statistic = "annual_return") -> list[Item]:
    """In back-tests, each method is better in each panel than in the panel ``than``, on the same universes."""
    return [_item(f"{m}: {p} - {than}", figure[p][m], figure[than][m], statistic) for p in panels for m in methods]


@rule
def gains_grow(figure: Panels, panels: Sequence[str], methods: Sequence[str], to: str, at_least: float,
               largest: bool = False, among: int | None = None) -> list[Item]:
    """With the number of parties, the mean gain over parties grows by ``at_least``.

    A party's gain is its last value minus that with the method ``to``, in the same federation. With ``largest`` the
    largest gain grows; with ``among``, the expected largest gain of that number of random parties. The panels have
    federations of several sizes; in a sweep, curves have the point ``method``.
    """
    by_method: dict[str, dict[int, NDArray[np.float64]]] = {}
    for panel in panels:
        for label, curve in figure[panel].items():
            by_method.setdefault(curve.point.get("method", label), {})[len(curve.parties)] = curve.parties
    items = []
    for m in methods:
        gains = {n: by_method[m][n] - by_method[to][n] for n in sorted(by_method[m])}
        numbers = {n: _expected_largest(g, among or n) if largest or among else float(g.mean())
                   for n, g in gains.items()}
        items += between({f"{m}: {a} to {b} parties": numbers[b] - numbers[a] for a, b in pairwise(numbers)}, at_least)
    return items


@rule
def survives_deflation(figure: Panels, panels: Sequence[str], methods: Sequence[str], trials: int,
                       at_least: float = 0.95) -> list[Item]:
    """The deflated Sharpe ratio of the mean portfolio of the best method is at least ``at_least``.

    The mean portfolio has the mean growth over parties on each day. Each of ``trials`` tried settings counts as a
    trial; their ratios are taken to differ as those of the methods.
    """
    items = []
    for p in panels:
        growth = {m: figure[p][m].growth.mean(axis=0) for m in methods}
        ratios = {m: float(sharpe_ratio(jnp.asarray(g))) for m, g in growth.items()}
        best = max(methods, key=lambda m: ratios[m])
        repeated = np.resize([*ratios.values()], max(trials, len(methods)))
        value = float(deflated_sharpe_ratio(jnp.asarray(growth[best]), jnp.asarray(repeated)))
        items.append(Item(f"{p}: the best method", value, value >= at_least))
    return items


def _expected_largest(values: NDArray[np.float64], among: int) -> float:
    """The expected largest of ``among`` values that are drawn without replacement."""
    n = len(values)
    among = min(among, n)
    chances = [comb(i, among - 1) / comb(n, among) for i in range(n)]  # that the i-th smallest value is the largest
    return float(np.sort(values) @ np.array(chances))


def _item(name: str, first: Curve, second: Curve, statistic: Statistic) -> Item:
    difference = _difference(statistic)(jnp.asarray(first.growth), jnp.asarray(second.growth), jax.random.key(0))
    low = float(difference.low)
    return Item(name, low, low > 0)


@lru_cache
def _difference(statistic: Statistic) -> Any:
    return jax.jit(partial(paired_difference, statistic=_STATISTICS[statistic]))
