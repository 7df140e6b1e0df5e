"""A plan on a table at a site: how its rows are read, and how the sites agree on them."""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from typing_extensions import override

from resolvent.comparisons.regression.rows import NoCompleteRowError
from resolvent.data.files.plain_values import read_plain
from resolvent.errors import quote
from resolvent.federation.protocol.limits import LIMITS
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, refusing
from resolvent.federation.protocol.table_plan import TablePlan
from resolvent.federation.site.plan_run import PlanRun, SiteMethod, part_of
from resolvent.federation.site.read_rows import check_present, read_site_rows

if TYPE_CHECKING:
    import pandas as pd

_Plan = TypeVar("_Plan", bound=TablePlan)


class TableRun(PlanRun[_Plan]):
    """A plan on a table at one site; the site has nothing to add at the end."""

    def _read_frame(self, needed: Iterable[str]) -> "pd.DataFrame":
        """The rows of the site's table, which has the columns that the plan needs."""
        self._limits = replace(self._site.limits, scores=False)  # there are no evaluations
        frame, rows = read_site_rows(self._site, self.plan.table, folder=self._versions)
        if rows is not None:
            frame = frame.iloc[np.concatenate([*rows.splits.values()])]
            self.version, self._journal.rows = rows.version, rows.account
        check_present(needed, [*map(str, frame.columns)])
        return frame

    def _check_levels(self, name: str, levels: Collection[str]) -> None:
        """Refuse a level that the site does not list."""
        allowed = (self._limits.levels or {}).get(name)
        if allowed is not None and (unknown := sorted({*levels} - {*allowed})):
            raise Refusal(RefusalCode.COLUMN, f"{quote(name)} has the level {quote(unknown[0])}, which is not in "
                          f"limits.levels ({LIMITS['levels'].why})", column=name)

    @override
    def describe(self) -> dict[str, Any]:
        return {"table": asdict(self.report())}

    @override
    def agree_alone(self) -> dict[str, Any]:
        return {"agreement": asdict(self.plan.agree({self._membership.name: self.report()}))}

    @override
    def _methods_for(self, content: Mapping[str, Any]) -> tuple[dict[str, Any], list[SiteMethod]]:
        with refusing(RefusalCode.CONFLICT):
            agreement = read_plain(self.plan.agreement_type, part_of(content, "agreement"),
                                   "the server sent no agreement")
        if agreement.sites != self.sizes:
            raise Refusal(RefusalCode.SIZES, "the agreement has other numbers of rows than the sites have signed")
        with refusing(RefusalCode.ENCODING):
            return self._agreed(agreement)

    @abstractmethod
    def _agreed(self, agreement: Any) -> tuple[dict[str, Any], list[SiteMethod]]:
        """As ``_methods_for``, from an agreement with the numbers of rows that the sites have signed."""

    @override
    def finish(self) -> dict[str, Any]:
        return {"methods": list(self.plan.labels)}


@contextmanager
def refusing_values() -> Iterator[None]:
    """Refuse a table whose values cannot be used, or none of whose rows is complete."""
    with refusing(RefusalCode.VALUES):
        try:
            yield
        except NoCompleteRowError as error:
            raise Refusal(RefusalCode.EMPTY, str(error), column=error.column) from error
