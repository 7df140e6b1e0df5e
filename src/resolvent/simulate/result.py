"""What a run gives back."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.algorithms.algorithm import Algorithm
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.problem import Problem
from resolvent.simulate.engine import Federation
from resolvent.simulate.evaluate import deployed
from resolvent.simulate.host_storage import HostStorage
from resolvent.simulate.plots import learning_curves, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Result"]

_BLOCK = 1000  # parties whose models are made at once, where they are in host memory


@dataclass(frozen=True, eq=False)
class Result:
    """The models, the metrics and the facts of one run.

    Attributes:
        name: of the method.
        algorithm: what ran.
        problem: what it was evaluated on: of a run in host memory, the problem of the parties that are evaluated.
        data: the parties' samples, where the problem was made from them.
        state: the server's and every party's last state; in host memory ``state.parties[k]`` reads party k's.
        metrics: method, round, party (number, or none), split, metric, value. ``loss`` and the score are of the model
            that the party deploys, ``global_loss`` and so on of the shared one, on that party's samples; ``refused`` is
            1 in every round in which the party's reply was not finite and counted as not arrived.
        facts: seconds (compile, rounds, evaluation), seconds and CPU seconds per round of each chunk (a chunk that
            compiles: CPU seconds with compilation), bytes up and down; with ``scheduler="measured"`` each schedule's
            seconds for a round.
        rounds: how many rounds ran.
        seed: of everything random.
        digest: SHA-256 of the last state; in host memory, of the server's and of the rows of the parties that have
            taken part.
        memory: where the parties' data and states are, if that is the host.
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
    memory: HostStorage | None = None

    def personal_model(self, party: int | str) -> Vector:
        """The model that a party would deploy, by number or (with data) by name."""
        if self.data is not None:
            k = self.data.index(party)
        elif isinstance(party, int) and 0 <= party < self.problem.parties:
            k = party
        else:
            raise InputError(f"there is no party {party!r}: they are numbered 0 to {self.problem.parties - 1}")
        problem, state = (self.problem, self.state) if self.memory is None else self.memory.at(np.array([k]))
        return tree.rows(deployed(self.algorithm, problem, state, jnp.array([k])), 0)

    @property
    def personal_models(self) -> Vector:
        """Every party's deployed model, stacked: leaves [N, ...]."""
        if self.memory is None:
            return deployed(self.algorithm, self.problem, self.state, jnp.arange(self.problem.parties))
        assert self.data is not None
        everybody = np.arange(len(self.data))
        blocks = [jax.tree.map(np.asarray, deployed(self.algorithm, *self.memory.at(some), jnp.asarray(some)))
                  for some in np.split(everybody, range(_BLOCK, len(everybody), _BLOCK))]
        return jax.tree.map(lambda *parts: np.concatenate(parts), *blocks)

    @property
    def server_model(self) -> Vector | None:
        """The shared model, or None where the algorithm has none."""
        shared: Vector | None = jax.tree.map(lambda x: x, self.algorithm.server_model(self.state.server))
        return shared

    @property
    def refused(self) -> dict[str, int]:
        """How many replies were refused because they were not finite, by the party's name; parties with any."""
        count = self.metrics.loc[self.metrics["metric"] == "refused", "party"].value_counts().sort_index()
        names = None if self.data is None else self.data.parties
        return {str(k) if names is None else names[int(k)]: int(times) for k, times in count.items()}  # type: ignore[call-overload]

    def scores(self, split: str = "test", metric: str | None = None) -> "pd.DataFrame":
        """A row per evaluated round, a column per party: a metric (default: the score) of the deployed models."""
        wanted = self.problem.score_name if metric is None else metric
        rows = self.metrics[(self.metrics["metric"] == wanted) & (self.metrics["split"] == split)]
        return rows.pivot(index="round", columns="party", values="value")

    def plot(self, split: str = "test") -> "Figure":
        """Learning curve: mean over parties of the deployed models' score, with the spread between parties."""
        figure, axes = new_figure()
        learning_curves(axes, self.metrics, self.problem.score_name, split)
        return figure
