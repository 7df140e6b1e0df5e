"""Scores, plots and models of a run, which has just ended or was saved."""

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.errors import InputError, alternatives, quote
from resolvent.math.tree import Vector

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from resolvent.differential_privacy.account import PrivacyAccount
    from resolvent.predict.fitted import Fitted

_SPLITS = ("train", "validation", "test")


def diverged_parties(metrics: "pd.DataFrame", score: str) -> dict[int, int]:
    """Id of a party -> the first evaluated round since which a score of its model is not finite."""
    rows = metrics[(metrics["metric"] == score) & metrics["party"].notna()]
    is_bad = ~np.isfinite(rows["value"].to_numpy(dtype=float))
    if not is_bad.any():
        return {}
    table = rows.assign(value=is_bad).pivot_table(index="party", columns="round", values="value", aggfunc="max",
                                                  fill_value=False)
    is_bad = np.flip(np.logical_and.accumulate(np.flip(table.to_numpy(dtype=bool), axis=1), axis=1), axis=1)
    since = table.columns.to_numpy()[is_bad.argmax(axis=1)]
    return {int(party): int(round_) for party, round_, bad in zip(table.index, since, is_bad[:, -1], strict=True)
            if bad}


class RunReadings(ABC):
    """Scores, plots and models of a run.

    Attributes:
        name: name of the method.
        rounds: number of rounds.
        metrics: a table with the columns method, round, party (id, or none), split, metric and value.
        facts: seconds, bytes and numbers of the run.
    """

    name: str
    rounds: int
    metrics: "pd.DataFrame"
    facts: dict[str, Any]

    @property
    def privacy_account(self) -> "PrivacyAccount | None":
        """What the parties have released, if the run had ``privacy=``."""
        if (facts := self.facts.get("privacy")) is None:
            return None
        from resolvent.differential_privacy.account import PrivacyAccount  # few runs are private

        return PrivacyAccount.from_facts(facts)

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

    def __repr__(self) -> str:
        refused = sum(self.refused.values())
        end = f", {refused} {'reply' if refused == 1 else 'replies'} did not count" if refused else ""
        if diverged := len(self.diverged):
            end += f", diverged at {diverged} {'party' if diverged == 1 else 'parties'}"
        return f"{type(self).__name__}({quote(self.name)}, {self.rounds} rounds{self._last_score()}{end})"

    def _last_score(self) -> str:
        """The mean score of the last evaluation on test samples, as the end of a text."""
        scores = self.scores()
        mean = scores.iloc[-1].mean(skipna=False) if len(scores) else float("nan")
        return "" if mean != mean else f", mean test {self.score_name} {mean:.3f}"

    def _repr_html_(self) -> str:
        from resolvent.data.html_tables import html_facts, html_table  # for notebooks

        scores = self.scores()
        title = f"{self.name}: {self.rounds} rounds{self._last_score()}"
        if not len(scores):
            return html_facts(title, {})
        names = self.parties
        rows = [[str(k) if names is None else names[int(k)], float(scores[k].iloc[0]), float(scores[k].iloc[-1])]
                for k in scores.columns]
        picture = b64encode(self.plot()._repr_png_()).decode()  # type: ignore[attr-defined]
        return (f"{html_facts(title, {})}<img style='max-width:100%;width:32em' alt='learning curve' "
                f"src='data:image/png;base64,{picture}'>"
                + html_table(["party", f"{self.score_name} at round {scores.index[0]}",
                              f"at round {scores.index[-1]}"], rows))

    @property
    def refused(self) -> dict[str, int]:
        """Name (or id) of a party -> number of its replies that did not count; parties without any are left out."""
        count = self.metrics.loc[self.metrics["metric"] == "refused", "party"].value_counts().sort_index()
        names = self.parties
        return {str(k) if names is None else names[int(k)]: int(times) for k, times in count.items()}  # type: ignore[call-overload]

    @property
    def diverged(self) -> dict[str, int]:
        """Name (or id) of a party -> the round since which its model has no score, because its outputs are not finite.

        It is the round of an evaluation. Parties whose last model has a score in every split are left out.
        """
        names = self.parties
        return {str(k) if names is None else names[k]: round_
                for k, round_ in diverged_parties(self.metrics, self.score_name).items()}

    def scores(self, split: str = "test", metric: str | None = None) -> "pd.DataFrame":
        """A metric of the personal models: a row per evaluated round, a column per party.

        Args:
            split: ``train``, ``validation`` or ``test``.
            metric: name of the metric; default: the problem's score.

        Raises:
            InputError: there is no such split, or no value of the metric.
        """
        if split not in _SPLITS:
            raise InputError(f"scores(split={quote(split)}) is not known{alternatives(str(split), _SPLITS)}")
        measured = self.metrics["metric"].unique().tolist()
        if metric is not None and metric not in measured:
            raise InputError(f"scores(metric={quote(metric)}) has no value in this run: give it in metrics= or "
                             f"diagnostics= of the run{alternatives(str(metric), measured)}")
        name = self.score_name if metric is None else metric
        rows = self.metrics[(self.metrics["metric"] == name) & (self.metrics["split"] == split)]
        return rows.pivot(index="round", columns="party", values="value")

    def plot(self, split: str = "test", party: int | None = None) -> "Figure":
        """The learning curve: the mean score of the personal models over parties, and their spread.

        Args:
            split: ``train``, ``validation`` or ``test``.
            party: number of one party, whose curve it is then, such as that of a central test set.

        Raises:
            InputError: this party was not evaluated.
        """
        metrics = self.metrics if party is None else self.metrics[self.metrics["party"] == party]
        if metrics.empty:
            raise InputError(f"plot(party={quote(party)}): this party was not evaluated; result.scores() has a column "
                             "for each party that was")
        from resolvent.simulator.record.plots import learning_curves, new_figure  # few runs are drawn

        figure, axes = new_figure()
        learning_curves(axes, metrics, self.score_name, split)
        return figure
