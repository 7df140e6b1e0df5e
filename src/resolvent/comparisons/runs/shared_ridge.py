r"""The ridge of a comparison's federated methods: chosen on the rows of all sites as ``careful_local`` does on its own.

With training rows i of all sites, n of them, and the path of ``resolvent.problem.ridge_path``,

.. code-block:: text

    r* = argmin over r of  sum over the sites of their validation losses, in cross-validation at the joint ridge fits
    f_k(W, b) = mean loss of site k + ridge/2 |W|^2,   ridge = min(r* / n, 1)

so that the methods approach the ridge regression of strength r* on all rows, and no reference is regularised with more
care than they are. A weight above 1 says that the inputs predict nothing; gradient steps would diverge with it.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.combinator import layers
from resolvent.algorithms.combinators.private_parties import is_private
from resolvent.algorithms.combinators.ridge_path import RidgePath
from resolvent.comparisons.experiment.experiment_file import Experiment
from resolvent.comparisons.judgement.convergence import is_bound
from resolvent.data.federated import FederatedData
from resolvent.problem.learning import LearningProblem
from resolvent.problem.models.model import LinearModel, Model
from resolvent.problem.problem import Problem
from resolvent.problem.ridge_path import Folds, fit_ridge_path, has_ridge_path
from resolvent.simulator.record.progress import Progress
from resolvent.xla.compiled_programs import enable_compilation_cache

RIDGE = "choosing the ridge"  # the part of a run that the progress shows


def has_shared_ridge(experiment: Experiment, data: FederatedData | None) -> bool:
    """Whether a ridge is chosen.

    It is not without ``careful_local`` among the methods, for models that it does not solve, if the model has an l2 of
    its own, with a budget of privacy, and for data on the disk.
    """
    model = experiment.model
    return (_path(experiment) is not None and isinstance(model, Model) and has_ridge_path(model) and not model.l2
            and experiment.privacy is None and data is not None and data.is_in_memory)


def shared_ridge(experiment: Experiment, data: FederatedData | None, seed: int,
                 report: Progress | None = None) -> float:
    """The weight of |W|^2/2 in the objective of each site, see ``with_ridge``.

    Args:
        report: a function that is called with (0, 1) before the choice and with (1, 1) after it.

    Returns:
        The weight; 0 if none is chosen, see ``has_shared_ridge``.
    """
    path, model = _path(experiment), experiment.model
    if path is None or data is None or not isinstance(model, Model) or not has_shared_ridge(experiment, data):
        return 0.0
    enable_compilation_cache()
    report = report or (lambda done, total: None)
    report(0, 1)
    problem = LearningProblem(model, data).pooled()
    strengths = jnp.sort(jnp.asarray(path.strengths))[::-1]
    strength = _strength(problem, strengths, jax.random.key(seed), folds=path.folds)
    ridge = min(float(strength) / int(problem.sizes[0]), 1.0)
    report(1, 1)
    return ridge


def _path(experiment: Experiment) -> RidgePath | None:
    return next((layer for algorithm in experiment.algorithms.values() for layer in layers(algorithm)
                 if isinstance(layer, RidgePath)), None)


def with_ridge(subject: Model | Problem, algorithm: Algorithm, ridge: float) -> Model | Problem:
    """The model as a method trains it: with the ridge, unless no federation runs it or the choice breaks its privacy.

    The choice has no noise. The references alone and on pooled rows are as their own settings say.
    """
    if not ridge or not isinstance(subject, LinearModel) or is_bound(algorithm) or is_private(algorithm):
        return subject
    return replace(subject, ridge=ridge)


@partial(jax.jit, static_argnames="folds")
def _strength(problem: LearningProblem, strengths: Float[Array, " S"], key: Array, *, folds: int) -> Array:
    w0 = problem.init(key)
    salt = jax.random.bits(key, (), jnp.uint32)
    return fit_ridge_path(problem.oracle(jnp.array(0)), w0, Folds(folds, salt), strengths).strength
