"""What is unusual in daily prices: jumps as of splits and typing errors, gaps between days, and constant prices.

Prices are refused with the line, the column and what to do, because a back-test would trade on the mistake: an
unadjusted split is a loss of 90 %, and a price typed without its decimal point a gain of 9,900 %.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError, shorten

_MAX_FACTOR = 1.75  # from one day to the next; a split of 2:1 is a factor of 2
_MAX_DAYS = 14  # between two rows; the longest closures of exchanges are about 10 days
_MAX_UNCHANGED = 20  # days on which a price stays the same
_ACCEPT = "if it is right, set check=False"


def check_prices(dates: NDArray[np.datetime64], closes: NDArray[np.float64], tickers: Sequence[str],
                 lines: Sequence[int], name: str) -> None:
    """Refuse daily prices that are unusual.

    Args:
        dates: [days] in ascending order.
        closes: [days, assets]; NaN before the first and after the last price of an asset.
        tickers: [assets] their names.
        lines: [days] the lines of the file.
    """
    gaps = np.flatnonzero(np.diff(dates).astype(int) > _MAX_DAYS)
    if len(gaps):
        i = int(gaps[0])
        missing = int(np.busday_count(dates[i] + 1, dates[i + 1]))
        raise InputError(f"{name}, line {lines[i + 1]}: {missing} business days have no row after {dates[i]}: add the "
                         f"missing rows, or use the prices after them; {_ACCEPT}")
    for ticker, column in zip(tickers, closes.T, strict=True):
        title = f"column {shorten(repr(ticker))}"
        _check_jumps(column, title, lines, name)
        _check_unchanged(column, title, lines, name)


def _check_jumps(column: NDArray[np.float64], title: str, lines: Sequence[int], name: str) -> None:
    moves = np.diff(np.log(column))
    jumps = np.flatnonzero(np.abs(moves) > math.log(_MAX_FACTOR))  # false for NaN
    if len(jumps):
        i = int(jumps[0])
        following = moves[i + 1] if i + 1 < len(moves) else math.nan
        raise InputError(f"{name}, line {lines[i + 1]}, {title}: the price goes from {column[i]:g} to "
                         f"{column[i + 1]:g} in one day: {_cause(float(moves[i]), float(following))}; {_ACCEPT}")


def _cause(move: float, following: float) -> str:
    """The likely cause of a jump and what to do, from the logarithmic returns of its day and of the next one."""
    factor = math.exp(abs(move))
    if abs(move + following) < 0.2 * abs(move):
        return f"the next day it is back, so this price is wrong by a factor of about {factor:.3g}: correct it"
    if abs(factor / round(factor) - 1) < 0.1:
        split = f"{round(factor)}:1" if move < 0 else f"1:{round(factor)}"
        return f"this looks like a split of {split}: give prices that are adjusted for splits and dividends"
    return "correct it, or give prices that are adjusted for splits and dividends"


def _check_unchanged(column: NDArray[np.float64], title: str, lines: Sequence[int], name: str) -> None:
    changes = np.flatnonzero(np.diff(column) != 0)  # true for NaN: listing and delisting are changes
    bounds = np.concatenate([[-1], changes, [len(column) - 1]])
    lengths = np.diff(bounds)
    longest = int(np.argmax(lengths))
    first = int(bounds[longest]) + 1
    if lengths[longest] >= _MAX_UNCHANGED and np.isfinite(column[first]):
        raise InputError(f"{name}, line {lines[first]}, {title}: the price stays {column[first]:g} for "
                         f"{lengths[longest]} days: give its prices, leave the values after its last price empty if it "
                         f"was delisted, or leave the ticker out with tickers; {_ACCEPT}")
