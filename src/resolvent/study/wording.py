"""Phrases that several findings share."""

from collections.abc import Sequence

__all__ = ["count_of", "enumerate_names"]


def enumerate_names(names: Sequence[str]) -> str:
    """``A``, ``A and B``, ``A, B and C``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def count_of(count: int, noun: str) -> str:
    """``1 round``, ``2 rounds``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
