"""Rows from an update by a search: inputs whose local work gives the update that has left the site.

.. code-block:: text

    minimise over the rows z   |u(z) - u|^2 / |u|^2

u is the update that left, and u(z) the update of the party's own local work on the rows z: the same steps,
minibatches, learning rates and terms of the method, because the server knows the plan and has sent the key. The search
differentiates through all steps. For solvers other than ``SGD`` and ``GD`` it matches the direction of the gradient
over all rows: minimise 1 - cos(u(z), u).

Labels are known, or they are guessed: classes are drawn from their shares, targets are searched with the inputs.

References:
    Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019; Geiping et al.: Inverting Gradients, NeurIPS 2020, for the
    cosine; Dimitrov et al.: Data Leakage in Federated Averaging, TMLR 2022, for several local steps.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, PartyState
from resolvent.algorithms.method import algorithm_of_round, local_solvers, update_origin
from resolvent.math import tree
from resolvent.math.codecs import Wire
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.models.losses import WeightedLabels
from resolvent.problem.oracle import NO_MEMORY, PartyMemory
from resolvent.problem.sample_oracle import SampleOracle
from resolvent.problem.solvers.solver import GD, SGD, LocalSolver, proximal_step
from resolvent.problem.subproblem import Subproblem

_STEPS_PER_CALL = 100
_MAX_STEPS = 1500  # of one search
_STEP_SIZE = 0.1
_CONVERGED = 1e-10


class Unrolled(LocalSolver):
    """The steps of ``SGD`` or ``GD`` in a loop of fixed length, which can be differentiated."""

    solver: SGD | GD
    count: int = eqx.field(static=True)

    @override
    def at(self, t: Array) -> "Unrolled":
        return Unrolled(self.solver.at(t), self.count)

    @override
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array, effort: Float[Array, ""],
                 memory: PartyMemory = NO_MEMORY) -> tuple[Vector, Array, PartyMemory]:
        solver = self.solver.at(jnp.array(0))
        samples = subproblem.oracle.samples

        def step(w: Vector, number: Array) -> tuple[Vector, None]:
            if isinstance(solver, GD):
                gradient = subproblem.smooth(w)
            else:
                batch = solver.batches.draw(key, number[None], samples, solver.batch_size)
                at_step = subproblem.at_step(jax.random.fold_in(key, number))  # of random layers
                gradient, _ = at_step.batch_smooth(w, batch.positions[0], batch.mask[0])
            return proximal_step(subproblem, w, gradient, solver.learning_rate, solver.proximal), None

        return jax.lax.scan(step, start, jnp.arange(self.count))[0], jnp.array(self.count), memory


class _FixedOracle(SampleOracle):
    """The oracle of a party with a fixed number of samples, without loops, which can be differentiated."""

    count: int = eqx.field(static=True, default=0)

    @classmethod
    def of(cls, oracle: SampleOracle, count: int) -> "_FixedOracle":
        return cls(**{f.name: getattr(oracle, f.name) for f in fields(oracle)}, count=count)

    @override
    def value(self, w: Vector) -> Float[Array, ""]:
        positions = jnp.arange(self.count)
        return self._mean_loss(w, positions, positions >= 0) + tree.full_dot(self.model.shrinkage(w), w) / 2

    @override
    def grad(self, w: Vector) -> Vector:
        positions = jnp.arange(self.count)
        return self.batch_grad(w, positions, positions >= 0)[0]

    @override
    def batch_grad(self, w: Vector, positions: Array, mask: Array,
                   memory: PyTree[Any] = ()) -> tuple[Vector, PyTree[Any]]:
        return tree.axpy(1, self.model.shrinkage(w), jax.grad(self._mean_loss)(w, positions, mask)), memory

    def _mean_loss(self, w: Vector, positions: Array, mask: Array) -> Float[Array, ""]:
        rows = self.offset + jnp.where(mask, positions, 0)
        x, y = jax.tree.map(lambda leaf: leaf[rows], (self.x, self.y))  # labels can have weights
        losses = self.model.loss.loss(self.model.apply(w, x), y)
        return jnp.sum(jnp.where(mask, losses, 0)) / jnp.sum(mask)


class Target(NamedTuple):
    """An update that has left the site.

    Attributes:
        problem: the problem of the site; the search replaces the inputs of its training rows, and labels.
        state: the party's state before the work.
        message: the payload of the server.
    """

    algorithm: Algorithm
    problem: LearningProblem
    state: PartyState
    message: PyTree[Any]
    update: PyTree[Any]
    key: Array
    round: int
    phase: int


class Matching(NamedTuple):
    """The result of searches.

    Attributes:
        guesses: [G, ...] inputs of rows, of all searches.
        residual: the smallest value of the objective.
        is_exact: whether the local work was repeated step by step.
    """

    guesses: NDArray[np.floating]
    searches: int
    residual: float
    is_exact: bool


def unrolled(algorithm: Algorithm, samples: int) -> tuple[Algorithm, bool]:
    """The algorithm with solvers that can be differentiated, and whether their steps are the same.

    Args:
        samples: number of the party's training samples.
    """
    is_exact = all(type(solver) in (SGD, GD) for solver in local_solvers(algorithm))

    def replaced(solver: LocalSolver) -> LocalSolver:
        if isinstance(solver, SGD | GD):
            return Unrolled(solver, int(solver.count_steps(jnp.array(samples), jnp.ones(()))))
        return Unrolled(GD(1.0), 1)

    result: Algorithm = tree.map_parts(replaced, algorithm, LocalSolver)
    return result, is_exact


def match_update(target: Target, *, searches: int, has_time: Callable[[], bool], seed: int = 0) -> Matching:
    """Search rows whose local work gives an update.

    Args:
        searches: number of searches; of every two the first knows the labels, and the second guesses them.
        has_time: whether the search may go on; it is asked after every 100 steps, for the first time when the program
            is compiled.
    """
    samples = int(target.problem.sizes[0])
    algorithm, is_exact = unrolled(target.algorithm, samples)
    is_exact &= not target.problem.model.has_random_layers
    objective = partial(_objective, target._replace(algorithm=algorithm), is_exact)
    rng = np.random.default_rng(seed)
    optimizer = optax.adam(optax.cosine_decay_schedule(_STEP_SIZE, _MAX_STEPS))

    @jax.jit
    def improve(free: PyTree[Any], labels: Array, moments: Any) -> tuple[PyTree[Any], Any, Array]:
        def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], Array]:
            free, moments = carry
            value, gradient = jax.value_and_grad(objective)(free, labels)
            update, moments = optimizer.update(gradient, moments)
            return (optax.apply_updates(free, update), moments), value

        (free, moments), values = jax.lax.scan(step, (free, moments), None, length=_STEPS_PER_CALL)
        return free, moments, values[-1]

    guesses, best, done = [], np.inf, 0
    while done < searches and (done == 0 or has_time()):
        free, labels = _first_guess(target.problem, samples, rng, knows_labels=done % 2 == 0)
        moments = optimizer.init(free)
        for _ in range(_MAX_STEPS // _STEPS_PER_CALL):
            free, moments, value = improve(free, labels, moments)
            if not float(value) > _CONVERGED or not has_time():
                break
        guesses.append(np.asarray(free["x"]))
        best, done = min(best, float(value) if np.isfinite(value) else np.inf), done + 1
    shape = target.problem.x.shape[1:]
    return Matching(np.concatenate([np.zeros((0, *shape)), *guesses]), done, best, is_exact)


def _first_guess(problem: LearningProblem, samples: int, rng: np.random.Generator, *,
                 knows_labels: bool) -> tuple[dict[str, Array], Array]:
    """Random inputs, and labels: the given ones, classes drawn by their shares, or random targets."""
    first = int(problem.offset[0, 0])
    labels = np.asarray(problem.labels)[first:first + samples]
    free = {"x": jnp.asarray(rng.normal(size=(samples, *problem.x.shape[1:])), problem.x.dtype)}
    if not knows_labels:
        drawn = rng.permutation(labels)
        if not problem.has_classes:
            free["y"] = jnp.asarray(rng.normal(drawn.mean(), drawn.std(), drawn.shape), problem.x.dtype)
        labels = drawn
    return free, jnp.asarray(labels)


def _objective(target: Target, is_exact: bool, free: PyTree[Any], labels: Array) -> Float[Array, ""]:
    problem, samples = target.problem, len(labels)
    rows = jnp.arange(samples) + problem.offset[0, 0]
    x, y = problem.x.at[rows].set(free["x"]), problem.labels.at[rows].set(free.get("y", labels).astype(
        problem.labels.dtype))
    y = problem.y._replace(labels=y) if isinstance(problem.y, WeightedLabels) else y
    guessed = problem.with_samples(x, y, problem.offset, problem.length, problem.sizes)
    of_round = algorithm_of_round(target.algorithm, jnp.asarray(target.round))
    sampled = guessed.at(jnp.asarray(target.round)).oracle(jnp.array(0))
    assert isinstance(sampled, SampleOracle)
    oracle = _FixedOracle.of(sampled, samples)
    _, reply, _ = of_round.phases[target.phase].party(target.state, target.message, oracle, target.key, jnp.ones(()))
    decoded = tree.map_parts(Wire.decoded, reply, Wire)
    origin = update_origin(target.algorithm, target.message, decoded, target.phase)
    update = tree.sub(*eqx.filter((decoded, origin), eqx.is_inexact_array))
    a, b = (jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(t)]) for t in (update, target.update))
    smallest = jnp.finfo(b.dtype).tiny  # type: ignore[no-untyped-call]
    if is_exact:
        return jnp.sum((a - b) ** 2) / jnp.maximum(jnp.sum(b**2), smallest)
    return 1 - jnp.vdot(a, b) / jnp.maximum(jnp.sqrt(jnp.sum(a**2) * jnp.sum(b**2)), smallest)
