"""The settings of a table, as an experiment has them."""

from typing import Any, NamedTuple

__all__ = ["SITE_TABLE", "TableSettings"]

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
