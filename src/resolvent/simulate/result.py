"""The result of a run."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.algorithms.algorithm import Algorithm
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, quote
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.problem import Problem
from resolvent.simulate.evaluate import personal_models
from resolvent.simulate.host_storage import HostStorage
from resolvent.simulate.plots import learning_curves, new_figure
from resolvent.simulate.states import Federation

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Result"]

_MODELS_AT_ONCE = 1000  # of parties on the host


@dataclass(frozen=True, eq=False)
class Result:
    """The models, the metrics and the facts of one run.

    Attributes:
        name: name of the method.
        algorithm: the algorithm.
        problem: the problem on which models were evaluated; of a run in host memory, that of the evaluated parties.
        data: the parties' samples, if the run had data.
        state: the last state of the server and of every party; in host memory ``state.parties[k]`` reads party k's.
        metrics: a table with the columns method, round, party (id, or none), split, metric and value. ``loss`` and the
            score are those of the party's personal model on its own samples; ``global_loss`` and the global score are
            those of the shared model. ``refused`` is 1 for a reply that was not finite and therefore did not count.
        facts: ``seconds`` (compile, rounds, evaluation), ``seconds_per_round`` and ``cpu_per_round`` between
            evaluations (the first CPU seconds include compilation), ``bytes`` (down, up), ``evaluated_parties``; with
            ``scheduler="measured"`` also ``scheduler_seconds``, the seconds of a round with each candidate.
        rounds: number of rounds.
        seed: seed of all random numbers.
        digest: SHA-256 of the last state; in host memory, of the server's state and the states of the parties that have
            taken part.
        storage: the parties' data and states, if they are on the host.
    """

    name: str
    algorithm: Algorithm
    problem: Problem
    data: FederatedData | None
    state: Federation
    metrics: "pd.DataFrame"
    facts: dict[str, Any]
    rounds: int
    seed: int
    digest: str
    storage: HostStorage | None = None

    def personal_model(self, party: int | str) -> Vector:
        """The model that a party uses.

        Args:
            party: the party's id, or its name in the data.

        Raises:
            InputError: there is no such party.
        """
        if self.data is not None:
            k = self.data.index(party)
        elif isinstance(party, int) and 0 <= party < self.problem.parties:
            k = party
        else:
            raise InputError(f"there is no party {quote(party)}: they are numbered 0 to {self.problem.parties - 1}")
        return tree.rows(self._personal_models(np.array([k])), 0)

    @property
    def personal_models(self) -> Vector:
        """The models of all parties, stacked: leaves [N, ...]."""
        if self.storage is None:
            return self._personal_models(np.arange(self.problem.parties))
        assert self.data is not None
        ids = np.arange(len(self.data))
        blocks = [jax.tree.map(np.asarray, self._personal_models(block))
                  for block in np.split(ids, range(_MODELS_AT_ONCE, len(ids), _MODELS_AT_ONCE))]
        return jax.tree.map(lambda *parts: np.concatenate(parts), *blocks)

    def _personal_models(self, ids: np.ndarray[Any, Any]) -> Vector:
        problem, state = (self.problem, self.state) if self.storage is None else self.storage.view(ids)
        return personal_models(self.algorithm, problem, state, jnp.asarray(ids))

    @property
    def server_model(self) -> Vector | None:
        """The shared model, or None if the algorithm has none."""
        shared: Vector | None = self.algorithm.server_model(self.state.server)
        return jax.tree.map(lambda leaf: leaf, shared)

    @property
    def refused(self) -> dict[str, int]:
        """Name (or id) of a party -> number of its replies that were not finite; parties without any are left out."""
        count = self.metrics.loc[self.metrics["metric"] == "refused", "party"].value_counts().sort_index()
        names = None if self.data is None else self.data.parties
        return {str(k) if names is None else names[int(k)]: int(times) for k, times in count.items()}  # type: ignore[call-overload]

    def scores(self, split: str = "test", metric: str | None = None) -> "pd.DataFrame":
        """A metric of the personal models: a row per evaluated round, a column per party.

        Args:
            split: ``train``, ``validation`` or ``test``.
            metric: name of the metric; default: the problem's score.
        """
        name = self.problem.score_name if metric is None else metric
        rows = self.metrics[(self.metrics["metric"] == name) & (self.metrics["split"] == split)]
        return rows.pivot(index="round", columns="party", values="value")

    def plot(self, split: str = "test") -> "Figure":
        """The learning curve: the mean score of the personal models over parties, and their spread."""
        figure, axes = new_figure()
        learning_curves(axes, self.metrics, self.problem.score_name, split)
        return figure
