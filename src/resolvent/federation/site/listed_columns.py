"""Columns that a site sends only if its limits list them: free text, identifiers, and levels that are not known."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import quote
from resolvent.federation.protocol.limits import LIMITS, Limits
from resolvent.federation.protocol.refusals import Refusal, RefusalCode
from resolvent.tables.column_encodings import looks_like_identifier


def check_listed_columns(levels: Mapping[str, int], numbers: Mapping[str, NDArray[Any]], rows: int,
                         limits: Limits) -> None:
    """Refuse free text and identifiers that the site does not list.

    Args:
        levels: column of categories or label -> number of its levels.
        numbers: column of numbers -> its values.
    """
    listed = {*(limits.features or ()), *(limits.levels or ()), *(limits.labels or ())}
    largest = min(np.inf if limits.max_levels is None else limits.max_levels,
                  np.inf if limits.max_level_density is None else limits.max_level_density * rows)
    for name, count in levels.items():
        if count > largest and name not in listed:
            raise Refusal(RefusalCode.COLUMN, f"column {quote(name)} has {count} different values in {rows} rows, as "
                          f"free text has (limits.max_levels: {LIMITS['max_levels'].why}): exclude it, or list it in "
                          "limits.features or limits.labels", column=name)
    for name, values in numbers.items():
        if not limits.identifiers and name not in listed and looks_like_identifier(values):
            raise Refusal(RefusalCode.COLUMN, f"column {quote(name)} has whole numbers that all differ, as an "
                          f"identifier has (limits.identifiers: {LIMITS['identifiers'].why}): exclude it, or "
                          "list it in limits.features", column=name)
