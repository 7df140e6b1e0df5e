"""Small federations of canaries, in which an audit can see what a private composition releases.

Every canary has a coordinate of the model to itself, and its clipped gradient is the longest that is allowed, so that
no other record or party hides it. See ``rv.privacy.audit_scores``.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation.rules import Dropout, Full, Participation
from resolvent.data.federated import FederatedData
from resolvent.differential_privacy.audit import Audit, audit_scores
from resolvent.problem.learning import LearningProblem
from resolvent.problem.models.model import from_functions
from resolvent.simulator.engine.rounds import run_rounds

_ABSENT = 1 - 1e-6  # the largest probability that Dropout allows, in float32
_STEEP = 1e4  # length of a canary's gradient before clipping


class Canaries(NamedTuple):
    """A federation of canaries.

    Attributes:
        problem: the parties' objectives on a model with one coordinate for each canary.
        is_included: [m] whether a canary takes part, drawn by fair coins.
    """

    problem: LearningProblem
    is_included: np.ndarray[Any, np.dtype[np.bool_]]


def record_canaries(count: int = 400, *, seed: int = 0) -> Canaries:
    """One party, whose records are canaries. An excluded one has the gradient 0: the number of records stays."""
    is_included = np.random.default_rng(seed).integers(0, 2, count).astype(bool)
    return Canaries(_problem([np.eye(count) * is_included[:, None]]), is_included)


def party_canaries(count: int = 400, *, seed: int = 0) -> Canaries:
    """Parties with one record each. Excluded ones are absent in every round, see ``audit_parties``."""
    is_included = np.random.default_rng(seed).integers(0, 2, count).astype(bool)
    return Canaries(_problem([row[None] for row in np.eye(count)]), is_included)


def audit_records(algorithm: Algorithm, *, rounds: int, delta: float, canaries: Canaries | None = None,
                  seed: int = 1) -> Audit:
    """The lower bound on the epsilon of records from all models that the server and the party have at the end.

    Args:
        algorithm: an algorithm whose local solver is ``DPSGD``.
        canaries: of ``record_canaries``; default: 400.
    """
    canaries = record_canaries() if canaries is None else canaries
    state = run_rounds(algorithm, canaries.problem, rounds=rounds, seed=seed)
    return audit_scores(_statistics(coordinates(state, len(canaries.is_included))), canaries.is_included, delta=delta)


def audit_parties(algorithm: Algorithm, *, rounds: int, delta: float, participation: Participation | None = None,
                  canaries: Canaries | None = None, seed: int = 1) -> Audit:
    """The lower bound on the epsilon of parties from the last model of an algorithm with ``PrivateParties``.

    Args:
        participation: draws the cohorts; default: all parties.
        canaries: of ``party_canaries``; default: 400.
    """
    canaries = party_canaries() if canaries is None else canaries
    absent = jnp.where(jnp.asarray(canaries.is_included), 0.0, _ABSENT)
    drawn = Dropout(absent, Full("uniform") if participation is None else participation)
    state = run_rounds(algorithm, canaries.problem, drawn, rounds=rounds, seed=seed)
    return audit_scores(_statistics(coordinates(state.server, len(canaries.is_included))),
                        canaries.is_included, delta=delta)


def coordinates(state: PyTree[Any], count: int) -> list[Float[np.ndarray[Any, Any], " m"]]:
    """All models in a state, each as m numbers."""
    rows = [np.asarray(leaf).reshape(-1, count) for leaf in jax.tree.leaves(state)
            if np.ndim(leaf) and np.shape(leaf)[-1] == count and jnp.issubdtype(leaf.dtype, jnp.floating)]
    return [row for part in rows for row in part]


def _statistics(models: list[Float[np.ndarray[Any, Any], " m"]]) -> Float[np.ndarray[Any, Any], "S m"]:
    """Each different model, the sum of all, and all differences."""
    different = list({model.tobytes(): model for model in models}.values())
    pairs = [first - second for i, first in enumerate(different) for second in different[:i]]
    return np.stack([*different, np.sum(different, axis=0), *pairs])


def _problem(inputs: list[Float[np.ndarray[Any, Any], "n m"]]) -> LearningProblem:
    def init(key: Array) -> Float[Array, " m"]:
        return jnp.zeros(inputs[0].shape[1])

    def gain(outputs: Float[Array, " B"], y: Array) -> Float[Array, " B"]:
        return -_STEEP * outputs  # the gradient is -x, times its length

    model = from_functions(init, lambda w, x: x @ w, loss=gain)
    data = FederatedData.from_arrays([x.astype(np.float32) for x in inputs],
                                     [np.zeros(len(x), np.float32) for x in inputs], validation=0, test=0)
    return LearningProblem(model, data)
