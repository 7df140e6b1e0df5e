"""What the rows of a regression cannot tell: collinear columns, separation, too few events."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.model import RegressionModel
from resolvent.errors import count_of, quote
from resolvent.regression.objective import FitSums

_COLLINEAR = 1e-13  # eigenvalue of the scaled outer products of the features, relative to the largest
_NO_EVENT = 1e-3  # events that a direction has at least, if its estimate is finite
_FLAT = 1e-4  # mean weight of the rows along a direction in which an estimate may go to infinity
_MOVES = 0.1  # how far the next step of Newton's method then goes: one more unit of the linear predictor each time
_LOADING = 1e-3  # of a parameter in a direction that is not identified, relative to the largest
_SITES = 8  # that a sentence names
_FEW = 5  # events for each coefficient


@dataclass(frozen=True)
class Identification:
    """What can be estimated.

    Attributes:
        is_identified: [P] whether a parameter can be estimated.
        inverse: [P, P] the inverse of the information; along directions that are not identified, zero.
        sentences: what a reader should know.
        rank: number of independent columns, with the further parameters.
    """

    is_identified: NDArray[np.bool_]
    inverse: NDArray[np.float64]
    sentences: tuple[str, ...]
    rank: int


class Directions(NamedTuple):
    """What rows say about P parameters.

    Attributes:
        inverse: [P, P] the inverse of the information; along directions that are not identified, zero.
        absent: [P] the parameters whose feature is zero in all rows.
        collinear: [P] the parameters that depend on each other linearly.
        separated: [P] the parameters whose likelihood has its maximum at infinity.
        rank: number of directions in which the features are not zero.
    """

    inverse: NDArray[np.float64]
    absent: NDArray[np.bool_]
    collinear: NDArray[np.bool_]
    separated: NDArray[np.bool_]
    rank: int

    @property
    def is_identified(self) -> NDArray[np.bool_]:
        """[P] whether a parameter can be estimated."""
        return ~(self.absent | self.collinear | self.separated)


def directions(gram: NDArray[np.float64], information: NDArray[np.float64], gradient: NDArray[np.float64],
               rows: int) -> Directions:
    """Find the directions of the parameters about which rows say nothing.

    Collinear: the features are zero along them. Separated: the features are not, but the fitted likelihood is flat
    along them, because the maximum is at infinity. Along a direction in which the features have the mean square 1, a
    finite estimate has the information of about one event or more; and Newton's method has come to rest there, while
    an infinite estimate grows by one unit of the linear predictor of its rows in every step.

    Args:
        gram: [P, P] outer products of the features, summed over the rows.
        information: [P, P] second derivatives of the loss at the fit.
        gradient: [P] of the loss at the fit.
    """
    diagonal = np.diag(gram)
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1))
    values, vectors = np.linalg.eigh(gram * np.outer(scale, scale))
    flat = (values < _COLLINEAR * values[-1]) | (values <= 0)
    basis = scale[:, None] * vectors  # its columns span the parameters
    regular = basis[:, ~flat] / np.sqrt(values[~flat])  # the features' outer product is the identity in it
    amounts, turns = np.linalg.eigh(regular.T @ information @ regular)
    along = regular @ turns
    moves = np.abs(along.T @ gradient) > _MOVES * np.abs(amounts)
    low = (rows * amounts < _NO_EVENT) | ((amounts < _FLAT) & moves)
    identified = along[:, ~low] / np.sqrt(amounts[~low])
    absent = diagonal <= 0
    collinear, separated = (_involved(null_space / scale[:, None]) for null_space in (basis[:, flat], along[:, low]))
    return Directions(identified @ identified.T, absent, collinear & ~absent, separated, int((~flat).sum()))


def directions_of(sums: FitSums, rows: int, curvature: NDArray[np.float64] | None = None) -> Directions:
    """The directions of a fit from its totals over the rows.

    Args:
        curvature: [P, P] second derivatives of the loss; default: the information.
    """
    information = sums.information if curvature is None else curvature
    return directions(np.asarray(sums.gram), np.asarray(information), np.asarray(sums.gradient), rows)


def identify(model: RegressionModel, sums: FitSums, l2: float = 0.0) -> Identification:
    """What can be estimated from all rows, and the sentences that a reader needs; see ``directions``.

    Args:
        l2: weight of half the squares of the coefficients: collinear and separated ones then have estimates.
    """
    rows, names = sum(model.site_rows), np.array(model.names, object)
    if l2:
        gram = sums.gram + rows * l2 * np.diag(model.is_penalised)
        sums = sums._replace(gram=gram, information=gram, gradient=0 * sums.gradient)
    parts = directions_of(sums, rows)
    has_no_limit = parts.separated & np.isin(names, [] if model.has_baseline else model.extra)
    constant = _constant(model, np.asarray(sums.gram)) & parts.collinear
    cases = ((parts.absent, _constant_at_sites if model.has_baseline else _without_rows),
             (constant, _constant_everywhere), (parts.collinear & ~constant, _collinear),
             (parts.separated & ~has_no_limit, _separated), (has_no_limit, _no_overdispersion))
    sentences = [words([*names[involved]]) for involved, words in cases
                 if involved.any() and not (words is _collinear and {*names[involved]} <= _intercepts(model))]
    return Identification(parts.is_identified, parts.inverse, tuple(sentences), parts.rank)


def _intercepts(model: RegressionModel) -> set[str]:
    """The names of intercepts: beside a constant column they are not identified either."""
    return {name for name in model.names if name.endswith("Intercept")}


def _constant(model: RegressionModel, gram: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[P] the columns that have one value in all rows, beside the intercept of the same linear predictor."""
    constant = np.zeros(len(gram), bool)
    if model.has_intercept:
        d, first = len(model.columns), model.columns.index("Intercept")
        for block in range(0, len(gram) - len(model.extra), d):
            one, here = block + first, slice(block, block + d)
            diagonal = np.diag(gram)[here]
            constant[here] = diagonal - gram[one, here]**2 / gram[one, one] <= _COLLINEAR * diagonal
            constant[one] = False
    return constant


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


def rows_left_out(model: RegressionModel) -> list[str]:
    """A sentence if rows with missing values are left out: how many, at which sites."""
    if not model.left_out:
        return []
    return [f"{count_of(sum(model.left_out.values()), 'row')} with missing values left out: "
            f"{_by_site(model.left_out)}."]


def rows_imputed(rows: Mapping[str, int], count: int) -> list[str]:
    """A sentence if there are rows with imputed values: how many, at which sites."""
    if not rows:
        return []
    return [f"{count_of(sum(rows.values()), 'row')} with missing values completed {count} times: {_by_site(rows)}."]


def _by_site(rows: Mapping[str, int]) -> str:
    """Numbers of rows with their sites, the largest first."""
    most = sorted(rows, key=lambda site: -rows[site])
    rest = sum(rows[site] for site in most[_SITES:])
    more = f", {rest} of {len(most) - _SITES} more sites" if rest else ""
    return ", ".join(f"{rows[site]} of {site}" for site in most[:_SITES]) + more


def _constant_at_sites(names: list[str]) -> str:
    return (f"No estimate: {_list(names)} {_are(names)} constant within every site, and with a baseline for each site "
            f"only rows of one site are compared. Leave {_them(names)} out.")


def _without_rows(names: list[str]) -> str:
    return (f"No estimate: {_list(names)} {_are(names)} 0 in all rows, such as a combination of levels that no row "
            f"has. Leave {_them(names)} out, or join levels.")


def _constant_everywhere(names: list[str]) -> str:
    return (f"No estimate: {_list(names)} {_are(names)} constant in all complete rows, as the intercept is. Leave "
            f"{_them(names)} out.")


def _collinear(names: list[str]) -> str:
    shift = (" Powers of numbers far from zero, such as years, need a shift: I((year - 2000)**2)."
             if any("**" in name for name in names) else "")
    return (f"Collinear: {_list(names)} depend on each other linearly, so that they have no estimates of their own. "
            f"Leave one of them out.{shift}")


def _separated(names: list[str]) -> str:
    shown = [name for name in names if not name.endswith("Intercept")] or names
    verb = "divides" if len(shown) == 1 else "divide"
    return (f"Separation: {_list(shown)} {verb} the rows perfectly, so that the estimates are infinite. Join levels, "
            "leave columns out, or set firth (binomial, poisson), which has finite estimates, or l2.")


def _no_overdispersion(names: list[str]) -> str:
    return (f"No overdispersion: the counts vary no more than Poisson counts, and no more of them are zero, so that "
            f"{_list(names)} has no finite estimate. The Poisson family has the same estimates: set family=poisson.")


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _them(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _list(names: list[str]) -> str:
    return ", ".join(quote(name) for name in names)
