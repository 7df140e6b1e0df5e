"""The clauses of the contract about replies: what an algorithm declares of them, and their weights."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from resolvent.algorithms.algorithm import Replies, ServerState
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.round import reply_shapes, stacked_replies
from resolvent.testing.example import Make, assert_close, require
from resolvent.testing.python_loop import draw_cohort, server_step
from resolvent.testing.trial import PARTICIPATION, SEED, Trial, trial_of, types_of

__all__ = ["check_declarations", "check_weights"]

_WEIGHTS = (0.4, 0.3, 0.2, 0.1)


def check_declarations(make: Make) -> None:
    """``replies_models`` and ``needs_individual_replies`` are true, and the shapes of replies are known without data.

    The Python loop refuses replies whose shapes are not those of ``reply_shapes``. A server that does not need
    individual replies makes the same step if each of them is replaced by their mean.
    """
    trial = trial_of(make)
    algorithm, problem, state = trial.double
    with jax.enable_x64(True):
        model = jax.eval_shape(problem.init, jax.random.key(0))
        shapes = reply_shapes(algorithm, model)
        require(not algorithm.replies_models or types_of(shapes[-1]) == types_of(model),
                "replies_models is True, but the replies of the last phase do not have the structure of a model: set "
                "it to False")
        if algorithm.needs_individual_replies:
            return
        key, cohort = _weighted_cohort(trial, _WEIGHTS)
        for phase, rows in enumerate(_replies(shapes, cohort)):
            step = server_step(algorithm, state.server, rows, key, phase)
            from_mean = server_step(algorithm, state.server, _averaged(rows, rows.mean()), key, phase)
            assert_close(from_mean, step, 1e-9, "needs_individual_replies is False, but the server's step changes if "
                                                "every reply is replaced by their mean: set it to True")


def check_weights(make: Make) -> None:
    """A server that averages replies weighs them.

    The step must not follow from the mean of the replies without their weights. A server may ignore weights otherwise,
    as Krum does.
    """
    trial = trial_of(make)
    algorithm, problem, state = trial.double
    with jax.enable_x64(True):
        shapes = reply_shapes(algorithm, jax.eval_shape(problem.init, jax.random.key(0)))
        key, cohort = _weighted_cohort(trial, _WEIGHTS)
        _, reversed_cohort = _weighted_cohort(trial, _WEIGHTS[::-1])
        for phase, (rows, reweighted) in enumerate(zip(_replies(shapes, cohort), _replies(shapes, reversed_cohort),
                                                       strict=True)):
            def step(replies: Replies, phase: int = phase) -> ServerState:
                return server_step(algorithm, state.server, replies, key, phase)

            plain_mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), rows.payload)
            other = replace(rows, payload=jax.tree.map(
                lambda leaf: leaf + 1 if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, rows.payload))
            ignores_weights = _is_close(step(rows), step(reweighted)) and not _is_close(step(rows), step(other))
            require(not ignores_weights or not _is_close(step(rows), step(_averaged(rows, plain_mean))),
                    "the server's step follows from the mean of the replies without their weights, so that a party "
                    "counts as much as another with more samples, and an absent one as zero: use replies.mean()")


def _weighted_cohort(trial: Trial, weights: tuple[float, ...]) -> tuple[Array, Cohort]:
    """The key and the cohort of round 0, with these weights."""
    _, problem, _ = trial.double
    key, cohort = draw_cohort(PARTICIPATION, problem.sizes, SEED, 0)
    return key, replace(cohort, weight=jnp.array(weights), shares=jnp.array(weights))


def _replies(shapes: tuple[PyTree[Any], ...], cohort: Cohort) -> list[Replies]:
    """Replies of each phase from all parties of a cohort."""
    rows = len(cohort.weight)
    return [stacked_replies(_numbers(shape, rows), cohort, jnp.ones(rows, bool)) for shape in shapes]


def _is_close(actual: PyTree[Any], expected: PyTree[Any]) -> bool:
    try:
        assert_close(actual, expected, 1e-9)
    except AssertionError:
        return False
    return True


def _numbers(shapes: PyTree[Any], rows: int) -> PyTree[Any]:
    """Different numbers between 1 and 2 in leaves [rows, ...]; zeros in leaves that are not real."""
    rng = np.random.default_rng(0)

    def leaf(shape: jax.ShapeDtypeStruct) -> Any:
        size = (rows, *shape.shape)
        return jnp.asarray(rng.uniform(1, 2, size) if jnp.issubdtype(shape.dtype, jnp.floating) else np.zeros(size),
                           shape.dtype)

    return jax.tree.map(leaf, shapes)


def _averaged(replies: Replies, mean: PyTree[Any]) -> Replies:
    """The replies, each replaced by one mean."""
    return replace(replies, payload=jax.tree.map(lambda leaf, row: jnp.broadcast_to(row, leaf.shape).astype(leaf.dtype),
                                                 replies.payload, mean))
