"""A plan whose file names a table: what is the same for a regression and a description."""

import contextlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.algorithms.combinators.fixed_point_sums import FixedPointSums
from resolvent.comparisons.plan_file import PlanFile
from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.policy import FEDERATION, Policy

if TYPE_CHECKING:
    import pandas as pd

# Columns have any units: with 5 integers for a number, sums over 1024 sites have the range 2^120 and steps of 2^-145.
LARGEST, TERMS = 2.0**120, 1024
wide_integer_sums = partial(FixedPointSums, largest=LARGEST, limbs=5)


@dataclass(frozen=True)
class TablePlan(Plan):
    """A plan whose rows are at the sites; ``file`` has the checked settings.

    Attributes:
        report_type: what a site says about its rows.
        agreement_type: what all sites use; its ``sites`` are their numbers of rows.
        tolerance: largest difference of what is ``compared``, in a federation and in one process, as a share of the
            largest number, or of 1.
    """

    file_type: ClassVar[type[PlanFile[Any]]]
    report_type: ClassVar[type[Any]]
    agreement_type: ClassVar[type[Any]]
    tolerance: ClassVar[float] = 1e-12
    may_end_early: ClassVar[bool] = True
    file: Any
    policy: Policy = FEDERATION

    @abstractmethod
    def in_process(self, frame: "pd.DataFrame") -> Any:
        """The result from a table with the rows of all sites."""

    def compared(self, found: Any) -> NDArray[np.float64]:
        """The numbers of a result, which are equal in a federation and in one process."""
        numbers: NDArray[np.float64] = found.numbers
        return numbers

    @property
    @override
    def name(self) -> str:
        return str(self.file.name)

    @property
    @override
    def text(self) -> str:
        return str(self.file.text)

    @property
    def settings(self) -> Any:
        """The section of the file that only such a plan has."""
        return self.file.settings

    @property
    @abstractmethod
    def variables(self) -> Sequence[str]:
        """The columns that the plan is about."""

    @abstractmethod
    def agree(self, reports: Mapping[str, Any]) -> Any:
        """What all sites use, from site -> its report."""

    @property
    @override
    def privacy(self) -> PrivacyBudget | None:
        privacy: PrivacyBudget | None = self.file.privacy
        return privacy

    @override
    def precision(self) -> contextlib.AbstractContextManager[None]:
        context: contextlib.AbstractContextManager[None] = jax.enable_x64(True)
        return context
