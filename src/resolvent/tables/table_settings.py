"""The settings of a table, as an experiment has them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from resolvent.errors import InputError

SITE_TABLE = "the table of each site"  # instead of a path, in the experiment of a federation


class TableSettings(NamedTuple):
    """The settings of an experiment for a table; ``data.tables.table`` explains each setting."""

    party: str
    label: str
    features: list[str] | None = None
    exclude: list[str] | None = None
    task: str = "auto"
    missing: str = "refuse"
    scale: str = "standard"
    validation: float = 0.2
    test: float = 0.2
    seed: int = 0
    weight: str | None = None
    dates: Any = "refuse"
    rare: str = "keep"
    rare_count: int = 10
    unseen: Any = "refuse"
    levels: dict[str, list[str]] | None = None
    more_labels: tuple[str, ...] = ()  # of several labels, those after the first

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "TableSettings":
        """The settings of a table among these values; ``label`` may be a list."""
        label, *more = label_names(values["label"])
        known = {name: value for name, value in values.items() if name in cls._fields}
        return cls(**{**known, "label": label, "more_labels": tuple(more)})

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns to predict."""
        return (self.label, *self.more_labels)


def label_names(label: str | list[str]) -> list[str]:
    """The columns to predict, from the setting ``label``.

    Raises:
        InputError: it is an empty list.
    """
    names = [label] if isinstance(label, str) else list(label)
    if not names:
        raise InputError("label: the list is empty: name the column to predict, or several")
    return names
