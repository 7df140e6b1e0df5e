"""Whose rows a table has: the party of each row, and the order of the parties' names."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from resolvent.data.encoded_rows import RowNames
from resolvent.data.samples import check_name
from resolvent.errors import quote
from resolvent.tables.cells import check_spellings
from resolvent.tables.columns import is_empty, read_parties

if TYPE_CHECKING:
    import pandas as pd


def read_owners(frame: "pd.DataFrame", party: str) -> NDArray[np.object_]:
    """[n] the name of each row's party."""
    RowNames(frame.index).refuse(is_empty(frame[party])[:, None], [party], "the party is missing, and every sample "
                                 "needs one: fill it in, or leave the row out")
    owners = read_parties(frame[party])
    names = np.unique(owners.astype(str)).tolist()
    for name in names:
        check_name(name, f"column {quote(party)}: the name of a party")
    check_spellings("among the parties", names)
    return owners


def group_rows(owners: NDArray[np.object_]) -> tuple[tuple[str, ...], Sequence[NDArray[np.intp]]]:
    """The parties' names in natural order, and the rows of each party, from the name of each row's party."""
    import pandas as pd

    parties = tuple(sorted(set(owners), key=natural_order))
    numbers = pd.Categorical(owners, categories=parties).codes
    return parties, np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])


def natural_order(name: str) -> tuple[bool, float, list[str | int], str]:
    """A sort key by which numbers are compared as numbers: ``-1`` before ``1``, ``site 2`` before ``site 10``."""
    is_number = re.fullmatch(r"[+-]?\d+(\.\d+)?", name) is not None
    parts = [int(part) if part.isdecimal() else part.casefold() for part in re.split(r"(\d+)", name)]
    return not is_number, float(name) if is_number else 0.0, parts, name
