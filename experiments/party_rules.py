"""Rules about back-tests: paired differences of the parties, and the ratio of the best of many trials.

Two methods are compared on the same universes and days. "Better" means that the 95 % interval of the mean difference
over the parties is above 0. It is a stationary block bootstrap of the days, with blocks of 10 days on average and 2,000
draws.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments.curves import Curve, Item, Panels, rule
from experiments.portfolio import annual_return, deflated_sharpe_ratio, paired_difference, sharpe_ratio

Statistic = Literal["annual_return", "sharpe_ratio"]
_STATISTICS = {"annual_return": annual_return, "sharpe_ratio": sharpe_ratio}


@rule
def better(figure: Panels, panels: Sequence[str], methods: Sequence[str], than: Sequence[str],
           statistic: Statistic = "annual_return") -> list[Item]:
    """In back-tests, each method is better than each of ``than``. The number is the lower end of the interval."""
    return [is_better(f"{m} - {other}", figure[p][m], figure[p][other], statistic)
            for p in panels for m in methods for other in than]


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


def is_better(name: str, first: Curve, second: Curve, statistic: Statistic = "annual_return") -> Item:
    """Whether a back-test is better than another one; the number is the lower end of the interval."""
    difference = _difference(statistic)(jnp.asarray(first.growth), jnp.asarray(second.growth), jax.random.key(0))
    low = float(difference.low)
    return Item(name, low, low > 0)


@lru_cache
def _difference(statistic: Statistic) -> Any:
    return jax.jit(partial(paired_difference, statistic=_STATISTICS[statistic]))
