"""Labels, offsets, exposures and weights as numbers; what is none is refused."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError, quote

if TYPE_CHECKING:
    import pandas as pd

    from resolvent.comparisons.regression.formula import Response


Kind: TypeAlias = Literal["any", "positive", "count", "frequency", "time"]


def numbers_of(column: "pd.Series[Any]", kind: Kind) -> NDArray[np.float64]:
    """[rows] the values of a column, which must be of this kind."""
    try:
        numbers = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{quote(column.name)} has values that are no numbers, such as {quote(column.iloc[0])}: "
                         "correct the column" + ("" if kind == "time" else ", or choose another family")) from error
    wrong = ~np.isfinite(numbers)
    if kind == "positive":
        wrong |= numbers <= 0
    elif kind == "time":
        wrong |= numbers < 0
    elif kind == "frequency":
        wrong |= (numbers <= 0) | (numbers % 1 != 0)
    elif kind == "count":
        wrong |= (numbers < 0) | (numbers % 1 != 0)
    if wrong.any():
        need = {"any": "finite numbers", "positive": "positive numbers", "count": "counts 0, 1, 2, ...",
                "frequency": "counts 1, 2, ...", "time": "times from zero on"}[kind]
        raise InputError(f"{quote(column.name)} has {int(wrong.sum())} values that are not {need}, such as "
                         f"{quote(float(numbers[wrong][0]))}: correct them, or delete these rows from the table")
    return numbers


def offsets_of(frame: "pd.DataFrame", added: Mapping[str, str]) -> NDArray[np.float64] | None:
    """[rows] the offset plus the logarithm of the exposure; None without both.

    Args:
        added: ``offset`` and ``exposure`` -> the column, if there is one.
    """
    parts = []
    if "offset" in added:
        parts.append(numbers_of(frame[added["offset"]], "any"))
    if "exposure" in added:
        parts.append(np.log(numbers_of(frame[added["exposure"]], "positive")))
    return sum(parts[1:], parts[0]) if parts else None


def times_of(frame: "pd.DataFrame", response: "Response") -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """[rows] the times, and the times of entry; None without a column for them."""
    time = numbers_of(frame[response.label], "time")
    if response.entry is None:
        return time, None
    entry = numbers_of(frame[response.entry], "time")
    if (wrong := entry >= time).any():
        first = int(np.flatnonzero(wrong)[0])
        raise InputError(f"{quote(response.entry)} is not before {quote(response.label)} in {int(wrong.sum())} rows, "
                         f"such as {entry[first]:g} and {time[first]:g}: a row is at risk from its entry to its time. "
                         "Correct them, or leave these rows out")
    return time, entry
