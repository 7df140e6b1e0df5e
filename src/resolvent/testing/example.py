"""The small federation on which the contract runs an algorithm, and the results that its clauses share."""

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation.rules import Dropout, Participation, Stragglers, Uniform
from resolvent.data.federated import FederatedData
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.models.model import from_functions
from resolvent.problem.solvers.solver import SGD, LocalSolver
from resolvent.simulator.engine.rounds import initial_state, run_rounds
from resolvent.simulator.engine.schedulers import Queue
from resolvent.simulator.states import Federation
from resolvent.testing.python_loop import python_rounds

Make: TypeAlias = Callable[[LocalSolver], Algorithm]

# Party 0 has one sample, and minibatches of 4 leave remainders.
SIZES = (1, 5, 9, 4, 13, 7, 6)
# The largest probability that Dropout allows, in float32: with it no party of a cohort takes part.
_ABSENT = 1 - 1e-6


def example_solver(learning_rate: ArrayLike = 0.1) -> LocalSolver:
    """SGD with minibatches of 4 samples, 2 epochs."""
    return SGD(learning_rate, batch_size=4, epochs=2)


def example_problem(sizes: tuple[int, ...] = SIZES, dtype: Any = None) -> LearningProblem:
    """Classification with a network of two layers, so that a model is a nested tree.

    Args:
        sizes: number of samples of each party.
        dtype: dtype of the parameters, such as ``jnp.bfloat16``; default: that of new arrays, float32 or float64.
    """
    rng = np.random.default_rng(0)
    inputs = [rng.normal(k / 3, 1, size=(n, 3)) for k, n in enumerate(sizes)]
    labels = [rng.integers(0, 3, n) for n in sizes]
    data = FederatedData.from_arrays(inputs, labels, validation=0, test=0, classes=["0", "1", "2"])
    init = _first_model if dtype is None else lambda key: jax.tree.map(lambda leaf: leaf.astype(dtype),
                                                                       _first_model(key))
    return LearningProblem(from_functions(init, _outputs, returns_features=True), data, block=4)


def example_participation(inner: Participation | None = None, parties: int = len(SIZES)) -> Dropout:
    """A participation that ``without_parties`` can switch off; both are one compiled program.

    Args:
        inner: draws the cohorts; default: 4 parties, 2 of which are stragglers.
        parties: N.
    """
    inner = Stragglers(Uniform(cohort=4), share=0.5) if inner is None else inner
    # NumPy: the contract calls this function when it is imported, and an import must not start JAX's backend.
    return Dropout(np.zeros(parties, np.float32), inner)


def without_parties(participation: Dropout) -> Dropout:
    """The same cohorts, of which no party takes part."""
    everyone_absent = np.full(np.shape(participation.probability), _ABSENT, np.float32)
    absent: Dropout = eqx.tree_at(lambda p: p.probability, participation, everyone_absent)
    return absent


def require(holds: bool, message: str) -> None:
    """Raise an error if a condition does not hold; unlike an assert statement, also under ``python -O``."""
    if not holds:
        raise AssertionError(message)


def assert_close(actual: PyTree[Any], expected: PyTree[Any], tolerance: float, message: str = "") -> None:
    """Raise an ``AssertionError`` if two trees differ by more than an absolute or a relative tolerance."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance,
                                   err_msg=f"{message} (leaf {jax.tree_util.keystr(path)})")


def _first_model(key: Array) -> Vector:
    # The same numbers in float32 and float64, which a random draw would not give.
    def layer(*shape: int) -> dict[str, Array]:
        return {"weight": jnp.cos(jnp.arange(12.0)).reshape(shape) / 2}
    return {"layer 0": layer(4, 3), "layer 1": layer(3, 4) | {"bias": jnp.zeros(3)}}


def _outputs(params: Vector, inputs: Float[Array, "B 3"]) -> tuple[Float[Array, "B 3"], Float[Array, "B 4"]]:
    first, second = params["layer 0"], params["layer 1"]
    features = jnp.tanh(inputs @ first["weight"].T)
    return features @ second["weight"].T + second["bias"], features


ROUNDS = 3
SEED = 7
PARTICIPATION = example_participation()


class Trial:
    """One algorithm on the example problem, with the results that several clauses read."""

    def __init__(self, make: Make) -> None:
        self.make = make

    @cached_property
    def single(self) -> tuple[Algorithm, LearningProblem, Federation]:
        """The algorithm, the problem and the first state in float32."""
        with jax.enable_x64(False):
            algorithm, problem = self.make(example_solver()), example_problem()
            return algorithm, problem, initial_state(algorithm, problem, PARTICIPATION, SEED)

    @cached_property
    def double(self) -> tuple[Algorithm, LearningProblem, Federation]:
        """The algorithm, the problem and the first state in float64."""
        with jax.enable_x64(True):
            algorithm, problem = self.make(example_solver()), example_problem()
            return algorithm, problem, initial_state(algorithm, problem, PARTICIPATION, SEED)

    @cached_property
    def final(self) -> Federation:
        """The state after all rounds, in float64 with a queue of two lanes."""
        return self.run()

    @cached_property
    def trajectory(self) -> list[Federation]:
        """The state before the first round and after each round, in float64 by the Python loop."""
        algorithm, problem, _ = self.double
        with jax.enable_x64(True):
            return python_rounds(algorithm, problem, PARTICIPATION, SEED, ROUNDS)

    def run(self, state: Federation | None = None, *, algorithm: Algorithm | None = None, start: int = 0,
            rounds: int = ROUNDS, empty: bool = False) -> Federation:
        """The state after some rounds, in float64 with a queue of two lanes."""
        own_algorithm, problem, first = self.double
        participation = without_parties(PARTICIPATION) if empty else PARTICIPATION
        with jax.enable_x64(True):
            return run_rounds(own_algorithm if algorithm is None else algorithm, problem, participation,
                              state=first if state is None else state, seed=SEED, start=start, rounds=rounds,
                              scheduler=Queue(2))


@lru_cache(maxsize=1)
def trial_of(make: Make) -> Trial:
    """The trial of an algorithm; the clauses of one algorithm, one after the other, share it."""
    return Trial(make)


def types_of(tree: PyTree[Any]) -> PyTree[Any]:
    """Structure, shapes and dtypes, and whether a dtype is weak: if that changes, the next round compiles again."""
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)), tree)
