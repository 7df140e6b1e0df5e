"""Problems: the objectives f_1, ..., f_N of all parties as one pytree, from which each party's oracle is derived."""

from abc import abstractmethod
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

# Name of a score -> its values: [splits] of one model on one party's samples; [M, splits] of several parties.
PartyScores: TypeAlias = dict[str, Float[Array, "*M splits"]]


def shares_by_size(sizes: Int[Array, " N"]) -> Float[Array, " N"]:
    """The shares lambda_k = n_k/n of the parties in the objective, from their numbers of training samples."""
    return sizes / jnp.sum(sizes)


class Problem(CheckedArguments, eqx.Module):
    """The objectives of all parties.

    Attributes:
        sizes: [N] number of training samples of each party.
        splits: names of the sample sets on which models can be evaluated.
        score_name: name of the score that is reported in addition to the loss.
        higher_is_better: whether a larger score is better. It comes from the loss (``Loss.higher_is_better``).
    """

    sizes: Int[Array, " N"]
    splits: tuple[str, ...] = eqx.field(static=True)
    score_name: str = eqx.field(static=True)
    higher_is_better: bool = eqx.field(static=True)

    @property
    def parties(self) -> int:
        """N, the number of parties."""
        return int(self.sizes.shape[0])

    def row(self, k: Int[Array, "..."]) -> Int[Array, "..."]:
        """The row of party k in states [N, ...]: k, unless the problem has only a subset of the parties."""
        return k

    def row_ids(self) -> Int[Array, " M"]:
        """[M] the id of the party of each row: 0, ..., N-1, unless the problem has only a subset of the parties."""
        return jnp.arange(self.parties)

    def party_ids(self) -> NDArray[np.int64]:
        """[M] ids of the parties whose data the problem has, ascending."""
        return np.arange(self.parties)

    def local(self) -> "Problem":
        """The same objectives under the ids 0, ..., M-1, for functions of all parties that the problem has."""
        return self

    def of_party(self, k: int, *, is_padded: bool = False) -> "Problem":
        """The problem of party k alone, which has the id 0.

        Args:
            k: the party's id.
            is_padded: whether the party's rows are padded with zeros to the number of rows of the largest party, so
                that all parties share a compiled program. Problems without rows ignore it.
        """
        return OneParty(self, jnp.array(k))

    @abstractmethod
    def init(self, key: Array) -> Vector:
        """The model before the first round, drawn from a key."""

    @abstractmethod
    def oracle(self, k: Int[Array, ""]) -> Oracle:
        """f_k; ``k`` may be traced."""

    def at(self, t: Int[Array, ""]) -> "Problem":
        """The problem of round ``t``, for data that change with the rounds; by default the problem itself.

        The parties, their sizes and the shapes of their models stay the same. Evaluations use the problem itself, so
        that the scores of all rounds are of the same samples.

        Args:
            t: number of the round; it may be traced. The first states of the parties are those of round 0.
        """
        return self

    def pooled(self) -> "Problem":
        """The problem of one party that has the training samples of all: its objective is sum_k n_k/n f_k.

        Raises:
            InputError: problems of this kind cannot be pooled.
        """
        raise InputError(f"{type(self).__name__} cannot be pooled: give it a method pooled(), or leave pooled out")

    @abstractmethod
    def split_sizes(self, split: int) -> Int[Array, " N"]:
        """Number of samples of each party in split number ``split``."""

    @abstractmethod
    def evaluate_party(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> tuple[Array, Array]:
        """Mean loss and mean score of model ``w`` on party k's samples of one split.

        The scores of a party depend on its own samples and the model only, so that a party can compute them where its
        data are.

        Args:
            w: the model.
            k: the party.
            split: number of the split.

        Returns:
            The means; nan if the party has no samples in the split.
        """

    def report(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> dict[str, Array]:
        """All scores of model ``w`` on party k's samples of one split, by name: ``loss``, ``score_name`` and others.

        By default they are those of ``evaluate_party``. A problem with further scores overrides it; each of them is a
        metric of a run, and is nan if the party has no samples in the split.
        """
        loss, score = self.evaluate_party(w, k, split)
        return {"loss": loss, self.score_name: score}

    def evaluate_shared(self, w: Vector, index: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
        """``report`` of one model for the parties ``index`` and all splits: [M, splits] each. Not traceable."""
        return {name: np.asarray(scores) for name, scores in _evaluate_parties(self, w, jnp.asarray(index)).items()}


def party_scores(problem: Problem, model: Vector, k: Int[Array, ""]) -> PartyScores:
    """The scores of a model on party k's samples, in every split.

    They depend on the party's samples and the model only, so that a party can compute them where its data are.
    """
    splits = jnp.arange(len(problem.splits))
    scores: PartyScores = jax.lax.map(lambda split: problem.report(model, k, split), splits)
    return scores


class OneParty(Problem):
    """The problem of one party of another problem, for problems whose samples are not rows.

    Attributes:
        number: the party's id in ``inner``.
    """

    inner: Problem
    number: Int[Array, ""]

    def __init__(self, inner: Problem, number: Int[Array, ""]) -> None:
        self.inner, self.number = inner, number
        self.sizes = inner.sizes[number][None]
        self.splits, self.score_name, self.higher_is_better = inner.splits, inner.score_name, inner.higher_is_better

    @override
    def init(self, key: Array) -> Vector:
        return self.inner.init(key)

    @override
    def oracle(self, k: Int[Array, ""]) -> Oracle:
        return self.inner.oracle(self.number)

    @override
    def at(self, t: Int[Array, ""]) -> "OneParty":
        return OneParty(self.inner.at(t), self.number)

    @override
    def split_sizes(self, split: int) -> Int[Array, " 1"]:
        return self.inner.split_sizes(split)[self.number][None]

    @override
    def evaluate_party(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> tuple[Array, Array]:
        return self.inner.evaluate_party(w, self.number, split)

    @override
    def report(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> dict[str, Array]:
        return self.inner.report(w, self.number, split)


@jax.jit
def _evaluate_parties(problem: Problem, w: Vector, index: Int[Array, " M"]) -> PartyScores:
    scores: PartyScores = jax.lax.map(lambda k: party_scores(problem, w, k), index)
    return scores


class ValueProblem(Problem):
    """Objectives that are evaluated by their own value."""

    @override
    def split_sizes(self, split: int) -> Int[Array, " N"]:
        return self.sizes

    @override
    def evaluate_party(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> tuple[Array, Array]:
        """f_k(w), as the loss and as the score."""
        value = self.oracle(k).value(w)
        return value, value


class SolvedProblem(ValueProblem):
    """Objectives with a known minimiser."""

    @abstractmethod
    def optimum(self, shares: Float[Array, " N"]) -> Vector:
        """The minimiser of f = sum_k shares_k f_k."""

    @abstractmethod
    def gap(self, w: Vector, shares: Float[Array, " N"]) -> Float[Array, ""]:
        """The optimality gap f(w) - f*."""
