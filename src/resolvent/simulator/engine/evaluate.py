"""Personal models, and the scores of models on the parties' samples.

Scores do not depend on the algorithm, so their functions are compiled once for all methods of a comparison.
"""

import jax
from jaxtyping import Array, Float, Int

from resolvent.algorithms.algorithm import Algorithm, PartyState
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.problem import PartyScores, Problem, party_scores
from resolvent.simulator.states import Federation


@jax.jit
def personal_models(algorithm: Algorithm, problem: Problem, state: Federation, index: Int[Array, " M"]) -> Vector:
    """The models that the parties ``index`` use in this state: leaves [M, ...]."""
    model_message = algorithm.model_message

    def of_party(k: Array) -> Vector:
        row: PartyState = tree.rows(state.parties, problem.row(k))
        return algorithm.personal_model(row, model_message(state.server, k), problem.oracle(k))

    return jax.vmap(of_party)(index)


@jax.jit
def evaluate_models(problem: Problem, models: Vector, index: Int[Array, " M"]) -> PartyScores:
    """The scores of model i (leaves [M, ...]) on the samples of party index[i], in every split: [M, splits]."""
    def of_party(args: tuple[Vector, Array]) -> PartyScores:
        model, k = args
        return party_scores(problem, model, k)

    scores: PartyScores = jax.lax.map(of_party, (models, index))
    return scores


@jax.jit
def evaluate_split(problem: Problem, models: Vector, choice: Int[Array, " M"], index: Int[Array, " M"],
                   split: Int[Array, ""]) -> tuple[Float[Array, " M"], Float[Array, " M"]]:
    """Mean loss and mean score of model choice[i] on party index[i]'s samples of one split; nan without samples."""
    def of_party(args: tuple[Array, Array]) -> tuple[Array, Array]:
        i, k = args
        return problem.evaluate_party(tree.rows(models, i), k, split)

    means: tuple[Array, Array] = jax.lax.map(of_party, (choice, index))
    return means
