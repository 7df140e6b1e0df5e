"""What can be read from the metrics of a run, whether it has just ended or was saved."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from resolvent.math.tree import Vector
from resolvent.simulate.plots import learning_curves, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from resolvent.problem.fitted import Fitted

__all__ = ["RunReadings"]


class RunReadings(ABC):
    """Scores, plots and models of a run.

    Attributes:
        metrics: a table with the columns method, round, party (id, or none), split, metric and value.
    """

    metrics: "pd.DataFrame"

    @property
    @abstractmethod
    def score_name(self) -> str:
        """The name of the score that is reported in addition to the loss."""

    @property
    @abstractmethod
    def parties(self) -> Sequence[str] | None:
        """The parties' names; None if they have none."""

    @property
    @abstractmethod
    def server_model(self) -> Vector | None:
        """The shared model, or None if the algorithm has none."""

    @abstractmethod
    def personal_model(self, party: int | str) -> Vector:
        """The model that a party uses.

        Args:
            party: the party's id, or its name in the data.

        Raises:
            InputError: there is no such party.
        """

    @abstractmethod
    def fitted(self, site: int | str | None = None) -> "Fitted":
        """A trained model that predicts for new rows.

        Args:
            site: the name or the id of a party, for its personal model; None: the shared model.

        Raises:
            InputError: there is no such party; there is no shared model; or the run had no data and model.
        """

    @property
    def refused(self) -> dict[str, int]:
        """Name (or id) of a party -> number of its replies that were not finite; parties without any are left out."""
        count = self.metrics.loc[self.metrics["metric"] == "refused", "party"].value_counts().sort_index()
        names = self.parties
        return {str(k) if names is None else names[int(k)]: int(times) for k, times in count.items()}  # type: ignore[call-overload]

    def scores(self, split: str = "test", metric: str | None = None) -> "pd.DataFrame":
        """A metric of the personal models: a row per evaluated round, a column per party.

        Args:
            split: ``train``, ``validation`` or ``test``.
            metric: name of the metric; default: the problem's score.
        """
        name = self.score_name if metric is None else metric
        rows = self.metrics[(self.metrics["metric"] == name) & (self.metrics["split"] == split)]
        return rows.pivot(index="round", columns="party", values="value")

    def plot(self, split: str = "test") -> "Figure":
        """The learning curve: the mean score of the personal models over parties, and their spread."""
        figure, axes = new_figure()
        learning_curves(axes, self.metrics, self.score_name, split)
        return figure
