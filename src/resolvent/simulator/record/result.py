"""The result of a run: models, metrics and facts, and how they are saved."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, quote
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem
from resolvent.simulator.record.run_readings import RunReadings
from resolvent.simulator.states import Federation
from resolvent.simulator.storage.parties_view import CollectedModels, DeviceParties, PartiesView

if TYPE_CHECKING:
    import pandas as pd

    from resolvent.predict.fitted import Fitted
    from resolvent.simulator.record.model_folder import SavedModels
    from resolvent.tables.drift import TrainingRows

_MODELS_AT_ONCE = 1000  # personal models that are computed at a time, of parties on the host
_PYTREES = ("algorithm", "problem", "state")


@dataclass(frozen=True, eq=False, repr=False)
class Result(RunReadings):
    """The models, the metrics and the facts of one run.

    Attributes:
        name: name of the method.
        algorithm: the algorithm.
        problem: the problem on which models were evaluated; of a run in host memory, that of the evaluated parties.
        data: the parties' samples, if the run had data.
        state: the last state of the server and of every party; in host memory ``state.parties[k]`` reads party k's.
        metrics: a table with the columns method, round, party (id, or none), split, metric and value. ``loss`` and the
            score are those of the party's personal model on its own samples; ``global_loss`` and the global score are
            those of the shared model. ``refused`` is 1 for a reply that did not count
            (``admission``).
        facts: ``stopped``, the reason, if a callback ended the run before its last round; ``seconds`` (compile,
            rounds, evaluation), ``seconds_per_round`` and ``cpu_per_round`` between evaluations (the first CPU seconds
            include compilation), ``restored_cpu_seconds`` of the rounds before the checkpoint from which the run
            continued, ``bytes`` (down, up), ``evaluated_parties``; with ``privacy=`` also ``privacy``, what the parties
            have released, see ``privacy_account``, and ``noise``, "simulated noise"; with ``scheduler="measured"`` also
            ``scheduler_seconds``, the seconds of a round with each candidate.
        rounds: number of rounds.
        seed: seed of all random numbers.
        digest: SHA-256 of the last state; in host memory, of the server's state and the states of the parties that have
            taken part.
        storage: the parties' data and states, if they are on the host, or divided among several processes. Then all
            processes must ask for the same personal models and party states, in the same order. None if all are on the
            device.

    Example:
        >>> problem = rv.problems.least_squares(parties=3, samples=20, features=2)
        >>> result = rv.simulate(rv.fedavg(rv.solvers.GD(0.01)), problem, rounds=2, progress=False)
        >>> result.rounds
        2
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
    storage: PartiesView | None = None

    @override
    def personal_model(self, party: int | str) -> Vector:
        if self.data is not None:
            k = self.data.index(party)
        elif isinstance(party, int) and 0 <= party < self.problem.parties:
            k = party
        else:
            raise InputError(f"there is no party {quote(party)}: they are numbered 0 to {self.problem.parties - 1}")
        return tree.rows(self.models_of(np.array([k])), 0)

    @property
    def personal_models(self) -> Vector:
        """The models of all parties, stacked: leaves [N, ...]."""
        if self.storage is None:
            return self.models_of(np.arange(self.problem.parties))
        assert self.data is not None
        ids = np.arange(len(self.data))
        blocks = [jax.tree.map(np.asarray, self.models_of(block))
                  for block in np.split(ids, range(_MODELS_AT_ONCE, len(ids), _MODELS_AT_ONCE))]
        return jax.tree.map(lambda *parts: np.concatenate(parts), *blocks)

    def models_of(self, ids: np.ndarray[Any, Any]) -> Vector:
        """The personal models of the parties with these ids, stacked: leaves [M, ...]."""
        return self.parties_view.personal_models(self.algorithm, ids)

    @property
    def parties_view(self) -> PartiesView:
        """The models and the samples of the parties, wherever they are."""
        return DeviceParties(self.problem, self.state) if self.storage is None else self.storage

    def collected(self) -> "Result":
        """The result with all personal models in this process; of several processes, all must call it."""
        view = self.parties_view
        return replace(self, storage=CollectedModels(view, self.personal_models)) if view.is_shared else self

    @property
    @override
    def server_model(self) -> Vector | None:
        shared: Vector | None = self.algorithm.server_model(self.state.server)
        return jax.tree.map(lambda leaf: leaf, shared)

    @property
    @override
    def score_name(self) -> str:
        return self.problem.score_name

    @property
    @override
    def parties(self) -> Sequence[str] | None:
        return None if self.data is None else self.data.parties

    @property
    def model(self) -> Model | None:
        """The predictor and its loss; None if the run had a problem of its own."""
        problem = self.problem.local()
        return problem.model if isinstance(problem, LearningProblem) else None

    @override
    def fitted(self, site: int | str | None = None) -> "Fitted":
        if self.data is None or self.model is None:
            raise InputError("the run had a problem without samples, so there are no rows to predict for")
        params = self.server_model if site is None else self.personal_model(site)
        if params is None:
            raise InputError(f"{self.name} has no shared model: name a site")
        from resolvent.predict.fitted import Fitted  # of few runs, predictions are computed at once
        from resolvent.tables.encoding_files import encoding_of

        name = None if site is None else self.data.parties[self.data.index(site)]
        return Fitted(self.model, params, encoding_of(self.data), self.name, name, self.rounds,
                      training=self._training)

    @property
    def saved_models(self) -> "SavedModels":
        """The models of the run with what is needed to use them, as they are written to a folder."""
        from resolvent.simulator.record.model_folder import SavedModels  # imported here: few runs are saved
        from resolvent.tables.encoding_files import encoding_of

        names = [f"party {k}" for k in range(self.problem.parties)] if self.data is None else self.data.parties
        encoding = None if self.data is None else encoding_of(self.data)
        return SavedModels(self.name, self.rounds, names, self.personal_models, self.server_model, self.model, encoding,
                           self.digest, self._training)

    @cached_property
    def _training(self) -> "TrainingRows | None":
        """The summary of the training rows; None with a private algorithm, whose guarantee does not cover it."""
        from resolvent.algorithms.combinators.private_parties import is_private  # few runs are saved
        from resolvent.tables.drift import summarize

        return None if self.data is None or is_private(self.algorithm) else summarize(self.data)

    def save(self, folder: Path | str) -> None:
        """Write the models, the metrics and the facts to a folder, from which ``rv.load`` reads them.

        The parties' samples, the algorithm and its state are not written: pickle the result to keep all of them.

        Args:
            folder: a folder that does not exist or is empty. It is complete, or it does not exist.

        Raises:
            InputError: the folder is in use.
        """
        from resolvent.simulator.record.saved_result import write_result

        write_result(Path(folder), self.saved_models, self.metrics, {
            "seed": self.seed, "score": self.score_name, "has_data": self.data is not None, "facts": self.facts})

    def __getstate__(self) -> dict[str, Any]:
        if self.storage is not None:
            raise pickle.PicklingError("a result in host memory or of several processes cannot be pickled: use "
                                       "result.save(folder)")
        try:
            pickle.dumps((self.algorithm, self.model))
        except (pickle.PicklingError, AttributeError, TypeError) as error:  # functions without an importable name
            raise pickle.PicklingError(f"the algorithm or the model cannot be pickled ({error}): use "
                                       "result.save(folder), or define its functions in a module") from error
        # A JAX array in double precision would be read in single precision, unless that is enabled globally.
        return self.__dict__ | {name: jax.tree.map(_to_numpy, getattr(self, name)) for name in _PYTREES}

    def __setstate__(self, state: dict[str, Any]) -> None:
        is_double = any(getattr(leaf, "dtype", None) == np.float64 for leaf in jax.tree.leaves(state["state"]))
        with jax.enable_x64(is_double):
            arrays = {name: jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf,
                                         state[name]) for name in _PYTREES}
        self.__dict__.update(state | arrays)


def _to_numpy(leaf: Any) -> Any:
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(leaf) if isinstance(leaf, jax.Array) and not is_key else leaf
