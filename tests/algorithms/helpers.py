"""Small convex problems in float64 and whole trajectories of algorithms on them."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import resolvent as rv
from resolvent.simulator.engine import evaluate
from resolvent.simulator.engine import rounds as simulator
from resolvent.simulator.states import Federation

SEED = jnp.array(3)


@cache
def quadratic(parties: int = 6, dimension: int = 4) -> rv.problems.QuadraticProblem:
    """Strongly convex quadratics with minimisers that differ."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=(parties, 7, dimension))
    h = np.einsum("kni,knj->kij", a, a) / 7 + 0.3 * np.eye(dimension)
    minimisers = 2 * rng.normal(size=(parties, dimension))
    return rv.problems.QuadraticProblem(jnp.asarray(h), jnp.asarray(np.einsum("kij,kj->ki", h, minimisers)),
                                        sizes=jnp.arange(1, parties + 1))


@cache
def classification(parties: int = 6) -> rv.problems.LearningProblem:
    """Multinomial logistic regression on parties of different sizes."""
    rng = np.random.default_rng(2)
    sizes = rng.integers(5, 19, parties)
    x = [rng.normal(rng.normal(size=3), 1, size=(n, 3)) for n in sizes]
    y = [rng.integers(0, 3, n) for n in sizes]
    data = rv.FederatedData.from_arrays(x, y, validation=0, test=0, classes=["0", "1", "2"])
    return rv.problems.LearningProblem(rv.models.logistic(3, 3), data)


def trajectory(algorithm: Any, problem: Any, rounds: int, participation: Any = None) -> list[Federation]:
    """The state before the first round and after each round."""
    return simulator.trajectory(algorithm, problem, rounds, participation, seed=SEED)


def limit(algorithm: Any, problem: Any, rounds: int = 4000, participation: Any = None) -> Federation:
    """The state after many rounds, in one call; by default all parties take part and weigh equally."""
    participation = rv.participation.Full("uniform") if participation is None else participation
    return simulator.run_rounds(algorithm, problem, participation, seed=SEED, rounds=rounds)


def personal_models(algorithm: Any, problem: Any, state: Federation) -> Any:
    """The personal models of all parties, leaves [N, ...]."""
    return evaluate.personal_models(algorithm, problem, jax.tree.map(jnp.asarray, state), jnp.arange(problem.parties))


def equal(a: Any, b: Any, tolerance: float = 1e-12) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance)


HUGE = 3e38


class Huge(rv.attacks.Attack):
    """Every number is 3e38: finite, and the end of a mean."""

    def update(self, update: Any, key: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, HUGE), update)
