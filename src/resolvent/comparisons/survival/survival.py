"""Kaplan-Meier curves and log-rank tests, from the counts of all sites."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.comparisons.plan_result import PlanResult
from resolvent.comparisons.regression.wording import probability
from resolvent.comparisons.survival.settings import SurvivalSettings
from resolvent.comparisons.survival.sums import SurvivalSums, TimesAgreement
from resolvent.comparisons.text_tables import TableForm, plain_table
from resolvent.errors import InputError, count_of

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup
    from matplotlib.figure import Figure


class LogRank(NamedTuple):
    """A test whether all groups have the same hazard.

    Attributes:
        statistic: chi-squared if they have.
    """

    statistic: float
    degrees_of_freedom: int
    p: float


@dataclass(frozen=True, eq=False, repr=False)
class Survival(PlanResult):
    r"""The survival of groups over all sites, by Kaplan and Meier.

    .. math:: S(t) = \prod_{t_j \le t} \Big(1 - \frac{d_j}{n_j}\Big), \qquad
              \sigma^2(t) = \sum_{t_j \le t} \frac{d_j}{n_j (n_j - d_j)}

    with d_j events among the n_j rows at risk at t_j. The interval is that of log(-log S), whose standard error is
    sigma / log S (Greenwood's formula by the delta method): the default of lifelines, and ``conf.type="log-log"`` of R.

    Source: Kaplan, Meier, *Nonparametric estimation from incomplete observations*, 1958.

    Attributes:
        points: [M] the times.
        sums: the counts of all sites at these times.

    Example:
        >>> found = rv.survival(frame, time="days", event="died", by="arm", party="hospital")  # doctest: +SKIP
        >>> found.log_rank(stratified=True).p  # doctest: +SKIP
    """

    kind: ClassVar[str] = "survival"
    settings_type: ClassVar[type[Any]] = SurvivalSettings
    agreement_type: ClassVar[type[Any]] = TimesAgreement
    settings: SurvivalSettings
    agreement: TimesAgreement
    points: NDArray[np.float64]
    sums: SurvivalSums

    @property
    @override
    def numbers(self) -> NDArray[np.float64]:
        return self.sums.vector

    @cached_property
    @override
    def table(self) -> "pd.DataFrame":
        """A row for each group and time: group, time, at_risk, events, survival, standard_error, low, high.

        A group has the times at which it has events, or fewer rows at risk than before.
        """
        import pandas as pd
        from scipy.stats import norm

        z, tables = float(norm.ppf((1 + self.settings.level) / 2)), []
        for name, d, n in zip(self.agreement.groups, self.sums.events, self.sums.at_risk, strict=True):
            with np.errstate(divide="ignore", invalid="ignore"):
                survival = np.cumprod(np.where(n > 0, 1 - d / n, 1.0))
                variance = np.cumsum(np.where(d > 0, d / (n * (n - d)), 0.0))
                half = z * np.sqrt(variance) / np.log(survival)
                low, high = (np.where(survival < 1, survival**np.exp(sign * half), 1.0) for sign in (-1, 1))
                error = np.where(survival > 0, survival * np.sqrt(variance), np.nan)
            shown = (d > 0) | (np.append(np.diff(n), -n[-1:]) != 0)
            tables.append(pd.DataFrame({
                "group": name, "time": self.points, "at_risk": n, "events": d, "survival": survival,
                "standard_error": error, "low": np.where(survival > 0, low, np.nan),
                "high": np.where(survival > 0, high, np.nan)})[shown])
        table: pd.DataFrame = pd.concat(tables, ignore_index=True)
        return table

    @cached_property
    def medians(self) -> "pd.DataFrame":
        """Group -> rows, events, and the first time with a survival of at most 1/2, with that of the two bounds.

        A median is infinite if the survival stays above 1/2, and NaN if a bound is not defined there.
        """
        import pandas as pd

        def first(curve: "pd.DataFrame", column: str) -> float:
            below = curve[curve[column] <= 0.5]
            return float(below["time"].iloc[0]) if len(below) else np.inf

        lines = {}
        for name, rows in zip(self.agreement.groups, self.sums.rows, strict=True):
            curve = self.of_group(name)
            lines[name] = {"rows": rows, "events": curve["events"].sum(), "median": first(curve, "survival"),
                           "low": first(curve, "low"), "high": first(curve, "high")}
        return pd.DataFrame.from_dict(lines, orient="index")

    def of_group(self, name: str) -> "pd.DataFrame":
        """The lines of ``table`` of a group."""
        return self.table[self.table["group"] == name]

    def at(self, times: Any) -> "pd.DataFrame":
        """Survival and number at risk at given times: a line for each group and time, with the columns of ``table``.

        Example:
            >>> found.at([365, 730])  # doctest: +SKIP
        """
        import pandas as pd

        times, lines = np.atleast_1d(np.asarray(times, np.float64)), []
        start = pd.DataFrame({"events": [0.0], "survival": 1.0, "standard_error": 0.0, "low": 1.0, "high": 1.0})
        for name, n in zip(self.agreement.groups, self.sums.at_risk, strict=True):
            curve = self.of_group(name)
            curves = pd.concat([start, curve[start.columns]], ignore_index=True)
            found = curves.iloc[np.searchsorted(curve["time"], times, side="right")].reset_index(drop=True)
            at_risk = np.append(n, 0)[np.searchsorted(self.points, times)]
            lines.append(found.assign(group=name, time=times, at_risk=at_risk)[[*self.table.columns]])
        table: pd.DataFrame = pd.concat(lines, ignore_index=True)
        return table

    def log_rank(self, *, stratified: bool = False) -> LogRank:
        """The test whether the groups have the same hazard.

        Args:
            stratified: whether the groups are compared within each site, whose hazards can differ.

        Raises:
            InputError: there is one group, or no event while rows of two groups are at risk.
        """
        from scipy.stats import chi2

        from resolvent.comparisons.survival.sums import log_rank_sums

        excess, variance = (self.sums.excess, self.sums.variance) if stratified else log_rank_sums(
            self.sums.events, self.sums.at_risk)
        degrees = int(np.linalg.matrix_rank(variance, tol=1e-9 * max(float(np.trace(variance)), 1e-300)))
        if not degrees:
            raise InputError("a log-rank test compares groups: name the column of two or more groups with by, of which "
                             "two have rows at risk at the time of an event")
        statistic = float(excess @ np.linalg.pinv(variance, rcond=1e-9, hermitian=True) @ excess)
        return LogRank(statistic, degrees, float(chi2.sf(statistic, degrees)))

    @override
    def tables(self, form: TableForm = "text") -> list[str]:
        rows = [["rows", *(f"{n:.0f}" for n in self.medians["rows"])],
                ["events", *(f"{n:.0f}" for n in self.medians["events"])],
                ["median", *itertools.starmap(_interval, self.medians[["median", "low", "high"]].to_numpy())]]
        for time in self.settings.at or self._usual_times:
            lines = self.at(time)
            rows += [[f"at {time:g}", *[""] * len(lines)], ["  at risk", *(f"{n:.0f}" for n in lines["at_risk"])],
                     ["  survival", *itertools.starmap(_interval, lines[["survival", "low", "high"]].to_numpy())]]
        by = "" if self.settings.by is None else f", by {self.settings.by}"
        return [plain_table(["", *self.agreement.groups], rows, form,
                            f"Survival{by}, with {self.settings.level:.0%} intervals")]

    @property
    def _usual_times(self) -> list[float]:
        """About five even times within the curves."""
        from matplotlib.ticker import MaxNLocator

        end = float(self.table["time"].max()) if len(self.table) else 0.0
        return [time for time in MaxNLocator(5).tick_values(0.0, end) if 0 < time <= end]

    @override
    def facts(self) -> list[str]:
        settings, rows = self.settings, sum(self.agreement.sites.values())
        facts = [f"{count_of(rows, 'row')} of {count_of(len(self.agreement.sites), 'site')}; the event is "
                 f"{settings.event}."]
        if left_out := sum(self.agreement.left_out.values()):
            facts.append(f"{count_of(left_out, 'row')} with a missing value left out.")
        if settings.every is not None:
            facts.append(f"Times are told as the ends of cells of {settings.every:g} or more, in which no site has "
                         f"fewer than {settings.min_cell} events, censored rows or entries of a group, or none; "
                         f"{rows - self.sums.rows.sum():.0f} rows of smaller groups, or entering later, are not told.")
        for stratified in (False, True)[:1 + (len(self.agreement.sites) > 1)]:
            try:
                test = self.log_rank(stratified=stratified)
            except InputError:
                continue
            within = ", stratified by site" if stratified else ""
            facts.append(f"Log-rank test{within}: chi-squared {test.statistic:.2f} with "
                         f"{count_of(test.degrees_of_freedom, 'degree')} of freedom, p {probability(test.p)}.")
        return facts

    def plot(self) -> "Figure":
        """The curve of each group, with its interval."""
        from resolvent.simulator.record.plots import COLOURS, new_figure

        figure, axes = new_figure(5.6, 3.6)
        for i, name in enumerate(self.agreement.groups):
            curve, colour = self.of_group(name), COLOURS[i % len(COLOURS)]
            times = np.concatenate([[0.0], curve["time"]])
            low, high = (np.concatenate([[1.0], curve[bound]]) for bound in ("low", "high"))
            axes.step(times, np.concatenate([[1.0], curve["survival"]]), where="post", color=colour, label=name)
            axes.fill_between(times, low, high, step="post", color=colour, alpha=0.15, linewidth=0)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel(self.settings.time)
        axes.set_ylabel("survival")
        if len(self.agreement.groups) > 1:
            axes.legend(title=self.settings.by)
        return figure

    @override
    def pictures(self) -> "list[Markup]":
        from resolvent.comparisons.pages import page_colours, svg_of

        with page_colours():
            return [svg_of(self.plot(), "Survival curves")]

    @override
    def _arrays(self) -> dict[str, Any]:
        return {"points": self.points.tolist(), "numbers": self.numbers.tolist()}

    @classmethod
    @override
    def _of_arrays(cls, settings: SurvivalSettings, agreement: TimesAgreement,
                   content: Mapping[str, Any]) -> "Survival":
        return cls(settings, agreement, np.array(content["points"], np.float64),
                   SurvivalSums.of_vector(np.array(content["numbers"], np.float64), len(agreement.groups)))


def _interval(value: float, low: float, high: float) -> str:
    """A number with its interval; what is not reached, or not defined, is a dash."""
    value_, low_, high_ = ("-" if not np.isfinite(x) else f"{x:.4g}" for x in (value, low, high))
    return f"{value_} ({low_} to {high_})"
