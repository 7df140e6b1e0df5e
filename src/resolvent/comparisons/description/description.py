"""A description as a table: per site and together, as text, Markdown, LaTeX, HTML or a data frame."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.comparisons.description.settings import DescriptionSettings
from resolvent.comparisons.description.sums import (
    ALL_SITES,
    EDGES,
    OTHER,
    Sums,
    ValuesAgreement,
    add_sums,
    sums_of_vector,
    vector_of_sums,
)
from resolvent.comparisons.plan_result import PlanResult
from resolvent.comparisons.text_tables import TableForm, plain_table
from resolvent.errors import count_of

if TYPE_CHECKING:
    import pandas as pd


class Cell(NamedTuple):
    """A number of the table.

    Attributes:
        value: NaN if nothing is told.
        low: the smallest possible value; of a quantile, which lies between two edges of a histogram.
        high: the largest one.
        is_exact: whether it is the number of all rows.
    """

    value: float
    low: float
    high: float
    is_exact: bool


@dataclass(frozen=True, eq=False, repr=False)
class Description(PlanResult):
    """The rows of all sites, described without small cells.

    Attributes:
        of_sites: site -> its sums; empty if they are hidden in secure sums.
        total: the sums of all sites.
        left_out: column of the table that was not named and cannot be described -> why.

    Example:
        >>> table = rv.describe(frame, party="hospital", by="arm")  # doctest: +SKIP
        >>> print(table)  # doctest: +SKIP
    """

    kind: ClassVar[str] = "description"
    settings_type: ClassVar[type[Any]] = DescriptionSettings
    agreement_type: ClassVar[type[Any]] = ValuesAgreement
    settings: DescriptionSettings
    agreement: ValuesAgreement
    of_sites: Mapping[str, Sums]
    total: Sums
    left_out: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_sums(cls, settings: DescriptionSettings, agreement: ValuesAgreement,
                of_sites: Mapping[str, Sums]) -> "Description":
        """The description from what each site tells."""
        return cls(settings, agreement, of_sites, add_sums([*of_sites.values()]))

    @property
    @override
    def numbers(self) -> NDArray[np.float64]:
        return vector_of_sums(self.total)

    @property
    def groups(self) -> list[str]:
        """The groups that have rows."""
        return [name for name, rows in zip(self._all_groups, self.total[""].sum(axis=0), strict=True) if rows]

    @cached_property
    @override
    def table(self) -> "pd.DataFrame":
        """A row for each number: site (``all sites``), column, level, statistic, group, value, low, high, is_exact."""
        import pandas as pd

        return pd.DataFrame([
            {"site": site, "column": column, "level": level, "statistic": statistic, "group": group, **cell._asdict()}
            for site, sums in self._tables.items() for column, level, statistic, cells in self._lines(sums)
            for group, cell in cells.items()])

    @override
    def tables(self, form: TableForm = "text") -> list[str]:
        texts = []
        for site, sums in self._tables.items():
            by = "" if self.settings.by is None else f", by {self.settings.by}"
            rows = [*self._text_rows(sums)]
            note = "" if not any("*" in text for row in rows for text in row[1:]) else (
                f" (*: without what a site does not tell, such as counts below {self.settings.min_cell})")
            texts.append(plain_table(["", *self.groups], rows, form, f"{site}{by}{note}"))
        return texts

    @override
    def facts(self) -> list[str]:
        rows, sites = sum(self.agreement.sites.values()), len(self.agreement.sites)
        facts = [f"{count_of(rows, 'row')} of {count_of(sites, 'site')}. Shares are of all rows of a group; quantiles "
                 "lie in the interval beside them."]
        if self.settings.min_cell > 1:
            facts.append(f"Counts below {self.settings.min_cell} are not told, nor what would give them away.")
        if self.left_out:
            facts.append("Not described: " + ", ".join(f"{name} ({why})" for name, why in self.left_out.items()) + ".")
        if not self.of_sites:
            facts.append("The numbers of single sites are hidden in secure sums.")
        return facts

    @override
    def _arrays(self) -> dict[str, Any]:
        return {"sites": {site: vector_of_sums(sums).tolist() for site, sums in self.of_sites.items()},
                "total": vector_of_sums(self.total).tolist()}

    @classmethod
    @override
    def _of_arrays(cls, settings: DescriptionSettings, agreement: ValuesAgreement,
                   content: Mapping[str, Any]) -> "Description":
        shapes = agreement.shapes(settings)
        return cls(settings, agreement, {site: sums_of_vector(np.array(vector), shapes)
                                         for site, vector in content["sites"].items()},
                   sums_of_vector(np.array(content["total"]), shapes))

    @property
    def _all_groups(self) -> list[str]:
        return self.agreement.groups(self.settings.by)

    @property
    def _tables(self) -> dict[str, Sums]:
        return {ALL_SITES: self.total, **(self.of_sites if len(self.of_sites) > 1 else {})}

    def _lines(self, sums: Sums) -> Iterator[tuple[str, str, str, dict[str, Cell]]]:
        """(column, level, statistic, group -> number) of each line."""
        rows, is_joined = sums[""]
        yield "", "", "n", self._by_group(map(_count, rows, is_joined))
        for name in self.settings.columns:
            array = sums[name]
            if name in self.agreement.levels:
                for j, level in enumerate([*self.agreement.levels[name], OTHER]):
                    if array[:, :, j].any():
                        counts = [*map(_count, *array[:, :, j])]
                        yield name, level, "count", self._by_group(counts)
                        yield name, level, "share", self._by_group(
                            [cell._replace(value=cell.value / n if cell.is_exact and n and not joined else np.nan,
                                           low=np.nan, high=np.nan, is_exact=cell.is_exact and not joined)
                             for cell, n, joined in zip(counts, rows, is_joined, strict=True)])
            else:
                for statistic, cells in self._of_numbers(name, array, is_joined):
                    yield name, "", statistic, self._by_group(cells)

    def _of_numbers(self, name: str, array: NDArray[np.float64],
                    is_joined: NDArray[np.float64]) -> Iterator[tuple[str, list[Cell]]]:
        n, left_out, is_more, first, second = array[:5]
        _, step, mean = self.agreement.grids[name]
        exact = [not more and not joined for more, joined in zip(is_more, is_joined, strict=True)]
        with np.errstate(invalid="ignore", divide="ignore"):
            means, variances = first / n, (second - first * first / n) / (n - 1)
        for statistic, values in (("n", n), ("missing", left_out), ("mean", mean + step * means),
                                  ("sd", step * np.sqrt(np.maximum(variances, 0)))):
            yield statistic, [Cell(float(x), float(x), float(x), is_exact)
                              for x, is_exact in zip(values, exact, strict=True)]
        edges = self.agreement.edges(name)
        for quantile in self.settings.quantiles:
            yield f"{100 * quantile:g}%", [_quantile(quantile, count, bounds[:EDGES], bounds[EDGES:], edges, is_exact)
                                           for count, bounds, is_exact in zip(n, array[5:].T, exact, strict=True)]

    def _by_group(self, cells: "Iterator[Cell] | Sequence[Cell] | map[Cell]") -> dict[str, Cell]:
        shown = self.groups
        return {group: cell for group, cell in zip(self._all_groups, cells, strict=True) if group in shown}

    def _text_rows(self, sums: Sums) -> Iterator[list[str]]:
        lines, before = [*self._lines(sums)], ""
        for number, (column, level, statistic, cells) in enumerate(lines):
            if column != before:
                yield [column, *[""] * len(cells)]
            before, title = column, f"  {level or statistic}" if column else statistic
            if statistic == "count":  # with its share, which is the next line
                yield [title, *map(_count_text, cells.values(), lines[number + 1][3].values())]
            elif statistic == "mean":
                yield ["  mean (sd)", *map(_mean_text, cells.values(), lines[number + 1][3].values())]
            elif statistic not in ("share", "sd") and not (column and statistic == "n"):
                yield [title, *(_count_text(cell) if statistic in ("n", "missing") else _quantile_text(cell)
                                for cell in cells.values())]


def _count(value: float, untold: float) -> Cell:
    """A count, and how many sites do not tell theirs."""
    return Cell(float(value), float(value), np.inf if untold else float(value), not untold)


def _quantile(quantile: float, n: float, low: NDArray[np.float64], high: NDArray[np.float64],
              edges: NDArray[np.float64], is_exact: bool) -> Cell:
    """The bounds of a quantile of n values, interpolated between the two values beside it, as pandas has it.

    Args:
        low: [edges] at least so many values are at or below the edge.
        high: [edges] at most so many.
    """
    if not n:
        return Cell(np.nan, np.nan, np.nan, is_exact)
    place = round((n - 1) * quantile, 9)
    above, below = edges[high <= np.floor(place)], edges[low >= np.ceil(place) + 1]
    left, right = float(above[-1]) if len(above) else -np.inf, float(below[0]) if len(below) else np.inf
    middle = (left + right) / 2 if np.isfinite(left) and np.isfinite(right) else left if np.isfinite(left) else right
    if not np.isfinite(middle):  # no count up to an edge is told
        return Cell(np.nan, left, right, is_exact=False)
    return Cell(middle, left, right, is_exact)


def _count_text(cell: Cell, share: Cell | None = None) -> str:
    percent = "" if share is None or np.isnan(share.value) else f" ({share.value:.1%})"
    return f"{cell.value:.0f}{percent}" if cell.is_exact else f"{cell.value:.0f}*" if cell.value else "*"


def _mean_text(mean: Cell, sd: Cell) -> str:
    if np.isnan(mean.value):
        return "*" * (not mean.is_exact) or "-"
    spread = "-" if np.isnan(sd.value) else f"{sd.value:.4g}"
    return f"{mean.value:.4g} ({spread}){'' if mean.is_exact else '*'}"


def _quantile_text(cell: Cell) -> str:
    if np.isnan(cell.value):
        return "*" * (not cell.is_exact) or "-"
    interval = f"> {cell.low:.4g}" if np.isinf(cell.high) else f"<= {cell.high:.4g}" if np.isinf(cell.low) else (
        f"{cell.low:.4g} to {cell.high:.4g}")
    return f"{interval}{'' if cell.is_exact else '*'}"
