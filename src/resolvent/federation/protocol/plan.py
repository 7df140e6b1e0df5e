"""What a lead orders: rounds of some methods over the rows of the sites.

A kind of plan has three parts, because a site does not import the server: its settings (a subclass of ``Plan``), what a
site does (of ``site.plan_run.PlanRun``), and what the server does (of ``server.served_plan.ServedPlan``).
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

from resolvent.algorithms.participation.rules import Full, Participation
from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.errors import InputError
from resolvent.federation.protocol.policy import Policy
from resolvent.tables.table_options import TableOptions


class Part(NamedTuple):
    """What every method of a plan is run with once.

    Attributes:
        fold: number of the fold whose rows are tested; None: the one split of the rows.
    """

    seed: int
    fold: int | None = None

    @property
    def columns(self) -> dict[str, int]:
        """The columns of its metrics."""
        return {"seed": self.seed} if self.fold is None else {"seed": self.seed, "fold": self.fold}


class Plan(ABC):
    """The settings of a plan, which every participant binds with the parts that are installed there.

    Attributes:
        kind: the section of the file that only such a plan has; ``experiment`` for an experiment.
        title: what the plan is called in messages to a person.
        needs_all_sites: why the plan cannot do without one of its sites in a round; empty if it can.
        may_end_early: whether its methods may end before their last round.
        policy: that of the participant which has bound the plan.
        refit: label -> number of rounds of the methods that are trained again on all rows; None: all methods are run.
        keeps_validation: whether validation rows stay what they are in a refit.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    needs_all_sites: ClassVar[str] = ""
    may_end_early: ClassVar[bool] = False
    policy: Policy
    refit: Mapping[str, int] | None = None
    keeps_validation: bool = False

    def with_refit(self, refit: Any, keeps_validation: Any) -> Self:
        """The same plan, of which these methods are trained again on all rows."""
        if refit is not None:
            raise InputError(f"refit: a {self.title} has no methods that could be trained again: remove the setting")
        return self

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the file, from which the name of a run is made."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The text that is sent: every setting, without the path of the lead's table."""

    @property
    @abstractmethod
    def table(self) -> TableOptions:
        """The settings of the sites' tables."""

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """The labels of the methods."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, of which each has a run of every method."""
        return (0,)

    @property
    def folds(self) -> int:
        """The number of folds, of which each has a run of every method; 1: one split of the rows."""
        return 1

    @property
    def parts(self) -> tuple[Part, ...]:
        """The seeds and folds, of which each has a run of every method."""
        if self.folds == 1:
            return tuple(Part(seed) for seed in self.seeds)
        return tuple(Part(seed, fold) for seed in self.seeds for fold in range(self.folds))

    @property
    @abstractmethod
    def rounds(self) -> int:
        """Largest number of rounds of a method."""

    def rounds_of(self, label: str) -> int:
        """Largest number of rounds of a method."""
        return self.rounds

    def title_of(self, part: Part) -> str:
        """What a part adds to the title of a method."""
        return ((f", seed {part.seed}" if len(self.seeds) > 1 else "")
                + (f", fold {part.fold + 1}" if part.fold is not None else ""))

    @property
    def total_rounds(self) -> int:
        """Number of rounds of all methods, seeds and folds."""
        return sum(map(self.rounds_of, self.labels)) * len(self.parts)

    def preset_of(self, label: str) -> str:
        """The name of a method in the limits of a site."""
        return self.kind

    @property
    def presets(self) -> list[str]:
        """The names of all methods in the limits of a site."""
        return list(dict.fromkeys(map(self.preset_of, self.labels)))

    @property
    @abstractmethod
    def privacy(self) -> PrivacyBudget | None:
        """The settings of secure sums; None if the server sees the replies."""

    def participation(self) -> Participation:
        """Which parties take part in a round."""
        return Full()

    @property
    def evaluate_every(self) -> int:
        """Rounds between evaluations of the models."""
        return self.rounds

    @property
    def note(self) -> str:
        """What a person should know before the plan runs; empty if there is nothing."""
        return ""

    @abstractmethod
    def precision(self) -> contextlib.AbstractContextManager[None]:
        """A context in which numbers have the bits of the plan."""
