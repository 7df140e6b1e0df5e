"""What is learned in a run: a model on federated data, or a problem of its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.prepared import Prepared, prepare
from resolvent.algorithms.description import Description
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.models.model import Model
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem
from resolvent.problem.subset import Gatherer
from resolvent.simulator.user_errors import naming_errors
from resolvent.xla.shapes import shapes_of


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned: a model on federated data, or a problem of its own.

    Attributes:
        model: the model, or None if there is a problem.
        data: the parties' samples, or None if there is a problem.
        problem: the objectives of all parties, or None if they are made from the model and the data.
        pools_data: whether one party has the training samples of all, while models are evaluated on those of each:
            there are no cohorts, messages and measurements of parties.
    """

    model: Model | None
    data: FederatedData | None
    problem: Problem | None
    pools_data: bool = False

    def of_algorithm(self, algorithm: Algorithm) -> "Task":
        """The task as an algorithm trains on it: with ``PooledData``, one party has the samples of all."""
        return replace(self, pools_data=algorithm.pools_data)

    @classmethod
    def from_arguments(cls, model: Model | Problem, data: FederatedData | None) -> "Task":
        """Check the two first arguments of ``simulate``."""
        if isinstance(model, Problem):
            if data is not None:
                raise InputError("a Problem brings its own data: leave data= out")
            return cls(None, None, model)
        if data is None:
            raise InputError(
                f"the model {type(model).__name__} needs data=: FederatedData, such as rv.datasets.digits()")
        if not isinstance(model, Model):
            raise InputError(f"model must be a Model, got {type(model).__name__}: see rv.models.from_functions, "
                             "from_equinox and from_flax")
        return cls(model, data, None)

    @cached_property
    def gatherer(self) -> Gatherer:
        """Gathers the data of a few parties, for a model on data."""
        assert self.model is not None
        assert self.data is not None
        return Gatherer(self.model, self.data)

    def prepare(self, algorithm: Algorithm, name: str) -> Prepared:
        """The algorithm as it runs on this task, and its description: the only trace before that of the rounds.

        Raises:
            InputError: with the name: the parts do not fit together.
        """
        def oracle() -> Oracle:
            of_party: Oracle = shapes_of(self.gatherer.template.oracle, jnp.array(0))
            return of_party

        source = self.init if self.problem is None else self.problem
        with naming_errors(name):
            return prepare(algorithm, source, parties=self.parties, oracle=oracle)

    def whole_problem(self) -> Problem:
        """The problem of all parties."""
        if self.problem is not None:
            return self.problem
        assert self.model is not None
        assert self.data is not None
        return LearningProblem(self.model, self.data)

    def problems(self) -> tuple[Problem, Problem]:
        """The problem of the rounds, and the one on which models are evaluated."""
        whole = self.whole_problem()
        return whole.pooled() if self.pools_data else whole, whole

    @property
    def training_sizes(self) -> NDArray[np.integer]:
        """The number of training samples of each party of the rounds."""
        return self.sizes.sum(keepdims=True) if self.pools_data else self.sizes

    @property
    def parties(self) -> int:
        """N, the number of parties."""
        if self.problem is not None:
            return self.problem.parties
        assert self.data is not None
        return len(self.data)

    @property
    def sizes(self) -> NDArray[np.integer]:
        """[N] number of training samples of each party."""
        if self.data is not None:
            return self.data.sizes()
        assert self.problem is not None
        return np.asarray(self.problem.sizes)

    @property
    def init(self) -> Callable[[Array], Vector]:
        """Random key -> first model."""
        source = self.problem if self.model is None else self.model
        assert source is not None
        return source.init

    def split_sizes(self, split: str) -> NDArray[np.integer]:
        """[N] number of samples of each party in a split."""
        if self.data is not None:
            return self.data.sizes(split)
        assert self.problem is not None
        return np.asarray(self.problem.split_sizes(self.problem.splits.index(split)))

    @property
    def validation_sizes(self) -> ArrayLike | None:
        """[N] number of validation samples of each party; None if the problem has no such split."""
        if self.problem is not None and "validation" not in self.problem.splits:
            return None
        return self.split_sizes("validation")


def check_sizes(sizes: NDArray[np.integer]) -> None:
    """Refuse numbers of samples from which no shares follow.

    Args:
        sizes: [N] number of training samples of each party.
    """
    total = int(sizes.sum(dtype=np.int64))
    if (negative := np.flatnonzero(sizes < 0)).size:
        raise InputError(f"party {negative[0]} has {sizes[negative[0]]} training samples: sizes must not be negative")
    if not 0 < total < 2**31:
        raise InputError(f"the {len(sizes)} parties have {total} training samples in all: their sum must lie between 1 "
                         "and 2^31 - 1, because parties are weighted by their shares of it")


def check_held_out(description: Description, samples: Any, name: str) -> None:
    """Refuse an algorithm that needs held-out samples if no party has any.

    Args:
        samples: [N] number of validation samples of each party.
    """
    if description.needs_held_out and not np.asarray(samples).any():
        raise InputError(f"{name}: it chooses by validation samples, and none of the {len(samples)} parties has any: "
                         "set a share for validation in the data")
