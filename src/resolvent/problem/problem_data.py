"""Data that are not samples with labels, and make a problem of their own from a model of their own kind."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from resolvent.problem.problem import Problem


class ProblemModel:
    """A model that only ``ProblemData`` can train, such as a policy that trades."""


class ProblemData(ABC):
    """Data of a federation from which a problem follows, such as prices and a portfolio of each party.

    Attributes:
        kind: the data in one word, for errors.
        models: the base class of the models.
    """

    kind: ClassVar[str]
    models: ClassVar[type]

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the data, for reports and errors."""

    @abstractmethod
    def __len__(self) -> int:
        """N, the number of parties."""

    @property
    @abstractmethod
    def parties(self) -> Sequence[str]:
        """The names of the parties."""

    @property
    @abstractmethod
    def notes(self) -> list[str]:
        """What a reader of the scores should know."""

    @abstractmethod
    def problem(self, model: Any) -> Problem:
        """The problem whose parties train a model of the kind ``models``."""
