"""What the rows of a regression cannot tell: collinear columns, separation, too few events."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.model import RegressionModel
from resolvent.errors import quote

_COLLINEAR = 1e-10  # eigenvalue of the scaled outer products of the features, relative to the largest
_SEPARATED = 1e-7  # information along a direction, relative to what the features alone would give
_LOADING = 1e-3  # of a parameter in a direction that is not identified, relative to the largest
_FEW = 5  # events for each coefficient


@dataclass(frozen=True)
class Identification:
    """What can be estimated.

    Attributes:
        is_identified: [P] whether a parameter can be estimated.
        inverse: [P, P] the inverse of the information; along directions that are not identified, zero.
        sentences: what a reader should know.
    """

    is_identified: NDArray[np.bool_]
    inverse: NDArray[np.float64]
    sentences: tuple[str, ...]


class Directions(NamedTuple):
    """What rows say about P parameters.

    Attributes:
        inverse: [P, P] the inverse of the information; along directions that are not identified, zero.
        collinear: [P] the parameters that depend on each other linearly.
        separated: [P] the parameters whose likelihood has its maximum at infinity.
        rank: number of directions in which the features are not zero.
    """

    inverse: NDArray[np.float64]
    collinear: NDArray[np.bool_]
    separated: NDArray[np.bool_]
    rank: int

    @property
    def is_identified(self) -> NDArray[np.bool_]:
        """[P] whether a parameter can be estimated."""
        return ~(self.collinear | self.separated)


def directions(gram: NDArray[np.float64], information: NDArray[np.float64]) -> Directions:
    """Find the directions of the parameters about which rows say nothing.

    Collinear: the features are zero along them. Separated: the features are not, but the fitted likelihood is flat
    along them, because the rows are fitted perfectly and the maximum is at infinity.

    Args:
        gram: [P, P] outer products of the features.
        information: [P, P] second derivatives of the loss at the fit.
    """
    diagonal = np.diag(gram)
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1))
    values, vectors = np.linalg.eigh(gram * np.outer(scale, scale))
    flat = (values < _COLLINEAR * values[-1]) | (values <= 0)
    basis = scale[:, None] * vectors  # its columns span the parameters
    regular = basis[:, ~flat] / np.sqrt(values[~flat])  # the features' outer product is the identity in it
    amounts, turns = np.linalg.eigh(regular.T @ information @ regular)
    low = amounts < _SEPARATED * max(float(amounts[-1]), np.finfo(float).tiny)
    along = regular @ turns
    identified = along[:, ~low] / np.sqrt(amounts[~low])
    involved = [_involved(null_space / scale[:, None]) for null_space in (basis[:, flat], along[:, low])]
    return Directions(identified @ identified.T, involved[0], involved[1], int((~flat).sum()))


def identify(names: Sequence[str], gram: NDArray[np.float64], information: NDArray[np.float64]) -> Identification:
    """What can be estimated from all rows, and the sentences that a reader needs; see ``directions``."""
    parts = directions(gram, information)
    sentences = [words([name for name, is_part in zip(names, involved, strict=True) if is_part])
                 for involved, words in ((parts.collinear, _collinear), (parts.separated, _separated))
                 if involved.any()]
    return Identification(parts.is_identified, parts.inverse, tuple(sentences))


def _involved(null_space: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[P] the parameters in any of these directions, [P, directions], in coordinates without units."""
    if not null_space.shape[1]:
        return np.zeros(len(null_space), bool)
    loadings = np.abs(null_space).max(1)
    return np.asarray(loadings > _LOADING * loadings.max())


def few_events(model: RegressionModel) -> list[str]:
    """A sentence if there are fewer than five events for each coefficient."""
    if model.family_name == "cox":
        events, unit = model.counts[1], "events"
    elif model.classes:
        events, name = min(zip(model.counts, model.classes, strict=True))
        unit = f"rows of {quote(name)}"
    else:
        events, unit = sum(model.site_rows), "rows"
    coefficients = len(model.columns)
    if events >= _FEW * coefficients:
        return []
    return [f"Few events: {events} {unit} for {coefficients} coefficients. With fewer than {_FEW} for each, estimates "
            "are biased away from zero and intervals are too short."]


def _collinear(names: list[str]) -> str:
    return (f"Collinear: {_list(names)} depend on each other linearly, so that they have no estimates of their own. "
            "Leave one of them out.")


def _separated(names: list[str]) -> str:
    return (f"Separation: {_list(names)} divide the rows perfectly, so that the estimates are infinite. Join levels, "
            "leave columns out, or set l2.")


def _list(names: list[str]) -> str:
    return ", ".join(quote(name) for name in names)
