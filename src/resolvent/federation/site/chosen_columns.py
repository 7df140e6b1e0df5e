"""Which columns, levels and values of a site's table take part in a plan.

Free text, identifiers, and levels that are not known leave the site only if its limits list them.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError, quote, shorten
from resolvent.federation.protocol.limits import LIMITS, Limits
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, refusing
from resolvent.tables.cells import LEADING_ZERO, NUMBER, CellRules, ColumnError, yaml_name
from resolvent.tables.column_encodings import is_missing, list_values, looks_like_identifier
from resolvent.tables.columns import LabelKind
from resolvent.tables.table_options import TableOptions


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


def common_values(values: NDArray[Any], train: NDArray[np.intp], min_cell: int) -> NDArray[Any]:
    """A column of numbers without a value of few rows.

    If fewer than ``min_cell`` rows, or training rows, have another value than the most frequent one, all have this one:
    otherwise the mean would tell how many they are.
    """
    is_present = ~is_missing(values)
    distinct, counts = np.unique(values[is_present], return_counts=True)
    if len(distinct) < 2:
        return values
    is_other = is_present & (values != distinct[counts.argmax()])
    is_rare = min(is_other.sum(), is_other[train].sum() or min_cell) < min_cell
    return np.where(is_other, distinct[counts.argmax()], values) if is_rare else values


def hidden_levels(values: NDArray[Any], min_cell: int, allowed: Sequence[str] | None) -> frozenset[str]:
    """The levels of a column with fewer rows than ``min_cell``, and those that the site does not list."""
    counts = Counter(values[~is_missing(values)].tolist())
    return frozenset(level for level, count in counts.items()
                     if count < min_cell or (allowed is not None and level not in allowed))


def check_hidden_numbers(name: str, levels: Collection[str], hidden: Collection[str], rules: CellRules) -> None:
    """Refuse a column of text whose numbers are all hidden: no other site could see that numbers are meant.

    Raises:
        ColumnError: more of the levels are numbers than words.
    """
    numbers = {level for level in levels if NUMBER.fullmatch(level)}
    words = sorted({*levels} - numbers)
    if (words and len(numbers) > len(words) and numbers <= {*hidden} and name not in rules.text
            and not any(map(LEADING_ZERO.fullmatch, numbers))):
        listed = ", ".join(map(repr, words[:4]))
        raise ColumnError("kind", f"column {shorten(repr(name))}: {len(numbers)} different values are numbers, and "
                          f"{listed} are not: set missing: [{listed}] if that stands for a missing value, set text: "
                          f"[{yaml_name(name)}] if the column is a category, or correct it")


def listed_levels(settings: TableOptions, kinds: Mapping[str, LabelKind], texts: Collection[str],
                  classes: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    """Column of text, or the label -> the levels that the experiment lists, in the order of the encoding.

    Args:
        kinds: kind of each label.
        classes: the classes of each label in the table.
    """
    listed = {}
    for name, levels in (settings.levels or {}).items():
        with refusing(RefusalCode.EXPERIMENT, name):
            listed[name] = list_values(levels, kinds.get(name, "text"))
            if name not in kinds and name not in texts:
                raise InputError(f"levels: the column {shorten(repr(name))} is no column of text")
    for label in {*kinds}.intersection(listed):
        if other := {*classes[label]}.difference(listed[label]):
            raise Refusal(RefusalCode.VALUES, f"the label {shorten(repr(label))} has the class "
                          f"{shorten(repr(min(other)))}, which the experiment does not list: leave its rows out",
                          column=label)
    return listed
