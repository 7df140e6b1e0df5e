"""Words that several tables and findings share."""

from collections.abc import Sequence

__all__ = ["listed"]


def listed(names: Sequence[str]) -> str:
    """``A``, ``A and B``, ``A, B and C``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
