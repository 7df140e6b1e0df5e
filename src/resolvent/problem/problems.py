"""Problems: the objectives of all parties, and problems with a known optimum for experiments.

``LearningProblem`` is a model on federated data; ``simulate`` builds it from the two. ``QuadraticProblem`` has
quadratic objectives. ``least_squares``, ``logistic_regression`` and ``logistic_data`` generate problems whose optimum
is known, so that runs report the optimality gap. To write a problem of your own, derive from ``Problem`` (or
``SolvedProblem``, if the optimum is known) and from ``Oracle``. ``Subproblem`` is the task of a local solver, and
``GradientStep`` the map of MAML, ``Ascent`` that of SAM. ``LocalObjective`` is an objective of a minibatch and a
context, which takes the place of f_k. ``ProblemData`` are data of a kind of your own in an experiment file, from which
a problem follows, and ``ProblemModel`` a model that only they can train.
"""

import jax.numpy as jnp
import numpy as np

from resolvent.arguments import checked
from resolvent.data import generators
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, check_range
from resolvent.problem.learning import LearningProblem
from resolvent.problem.logistic import LogisticProblem
from resolvent.problem.maps import Ascent, GradientStep
from resolvent.problem.mixed import MixedProblem, mixed
from resolvent.problem.models.model import logistic
from resolvent.problem.objective import Batch, Context, LocalObjective
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem, SolvedProblem
from resolvent.problem.problem_data import ProblemData, ProblemModel
from resolvent.problem.quadratic import LeastSquaresProblem, QuadraticProblem
from resolvent.problem.sample_oracle import SampleOracle
from resolvent.problem.subproblem import Subproblem

__all__ = ["LearningProblem", "QuadraticProblem", "least_squares", "logistic_regression", "logistic_data",  # noqa: RUF022
           "Problem", "SolvedProblem", "Oracle", "SampleOracle", "Subproblem", "GradientStep", "Ascent",
           "LocalObjective", "Batch", "Context", "ProblemData", "ProblemModel"]


@checked
def least_squares(*, parties: int = 25, samples: int = 5000, features: int = 100, noise: float = 0.5,
                  heterogeneity: float = 0.0, condition: float = 1.0, alpha: float = 1.0, minibatches: bool = False,
                  seed: int = 0) -> SolvedProblem:
    """Least squares with normal designs, f_k(w) = |A_k w - b_k|^2 / 2.

    The labels are b_k = A_k (w + heterogeneity*v_k) + noise*e_k; the entries of A_k, w, v_k and e_k are standard
    normal. The objective is the mean over the parties (the paper has the sum). The paper's measure of heterogeneity, H
    = mean of |grad f_k|^2 at the optimum, is about samples*features*(noise^2 + samples*heterogeneity^2). The paper
    varies H and does not say how. Its three cases, H = 1.2e5, 7.6e6 and 1.9e8, correspond to heterogeneity = 0, 0.055
    and 0.28. The defaults are the paper's sizes. Source: operator-splitting paper, A.1.

    Args:
        parties: number of parties.
        samples: number of rows of every A_k.
        features: the dimension of w.
        noise: standard deviation of the noise on b_k.
        heterogeneity: standard deviation of the parties' true weights around the common ones.
        condition: condition number of the expected Hessian; column j of A_k is multiplied by
            condition^(-j/(2(features-1))). With more samples the parties' Hessians differ less.
        alpha: FedMix's alpha, in (0, 1]; below 1 the objectives are f_k(alpha w + (1-alpha) x_k) with x_k = argmin f_k.
        minibatches: store the samples, so that solvers can draw minibatches; otherwise the gradients of minibatches
            are full gradients. With it, alpha must be 1.
        seed: seed of all random numbers.

    Raises:
        InputError: a number is too small, there is no unique optimum, or alpha is below 1 with minibatches.

    Example:
        >>> problem = rv.problems.least_squares(parties=3, samples=20, features=2)
        >>> problem.optimum(jnp.full(3, 1 / 3)).shape
        (2,)
    """
    check_range("least_squares", "[1, inf)", parties=parties, samples=samples, features=features)
    check_range("least_squares", "[0, inf)", noise=noise, heterogeneity=heterogeneity)
    check_range("least_squares", "[1, inf)", condition=condition)
    if parties * samples < features:
        raise InputError(f"parties={parties} times samples={samples} must be at least features={features}: with fewer "
                         "equations than unknowns there is no unique optimum")
    if minibatches and alpha != 1:
        raise InputError(f"minibatches need alpha=1, got alpha={alpha}: leave one of the two out")
    rng = np.random.default_rng(seed)
    common = rng.normal(size=features)
    scales = condition**(-np.linspace(0, 0.5, features))
    hessians, linears, constants = (np.empty((parties, *shape)) for shape in ((features, features), (features,), ()))
    samples_of: list[tuple[np.ndarray, np.ndarray]] = []
    for k in range(parties):  # all designs together take up to a hundred times the memory of the quadratic problem
        a = rng.normal(size=(samples, features)) * scales
        true = common + heterogeneity * rng.normal(size=features)
        b = a @ true + noise * rng.normal(size=samples)
        hessians[k], linears[k], constants[k] = a.T @ a, a.T @ b, b @ b / 2
        if minibatches:
            samples_of.append((a, b))
    if minibatches:
        designs, labels = (jnp.asarray(np.stack(part)) for part in zip(*samples_of, strict=True))
        return LeastSquaresProblem(designs, labels)
    problem = QuadraticProblem(jnp.asarray(hessians), jnp.asarray(linears), jnp.asarray(constants),
                               jnp.full(parties, samples))
    return problem if alpha == 1 else mixed(problem, alpha)


@checked
def logistic_regression(*, parties: int = 10, samples: int = 1000, features: int = 100, heterogeneity: float = 0.0,
                        seed: int = 0) -> SolvedProblem:
    """Logistic regression with normal inputs, f_k(w) = sum_j log(1 + exp(-b_kj a_kj'w)) + |w|^2 / (2 m n).

    The samples are those of the data set splitting_logistic. The objective is the mean over the parties (the paper
    has the sum); f_k is a sum over samples, as the paper's steps of 1e-2 suppose. The defaults are the paper's sizes.
    Source: operator-splitting paper, A.1.

    Args:
        parties: number of parties (m).
        samples: samples of every party (n).
        features: the dimension of w.
        heterogeneity: standard deviation of the parties' true weights around the common ones.
        seed: seed of all random numbers.

    Example:
        >>> problem = rv.problems.logistic_regression(parties=2, samples=10, features=3)
        >>> problem.optimum(jnp.full(2, 1 / 2)).shape
        (3,)
    """
    data = generators.splitting_logistic(parties=parties, samples=samples, features=features,
                                         heterogeneity=heterogeneity, seed=seed)
    a, b = (np.asarray(part, np.float64).reshape(parties, samples, -1) for part in (data.x, data.y))
    return LogisticProblem(a, 2 * b[..., 0] - 1)


@checked
def logistic_data(*, data: FederatedData, l2: float = 0.01, alpha: float = 1.0) -> SolvedProblem:
    """Logistic regression on any classification data, with the optimum computed to the precision in use.

    f_k is the mean loss over party k's training samples plus l2/2 |w|^2; the objective is their mean by size. With
    alpha below 1 the objectives are FedMix's, f_k(alpha w + (1 - alpha) x_k), and the minimiser x_k of each party is
    computed as well. Use precision: float64.

    Args:
        data: the parties' samples: the name of a data set and its settings.
        l2: weight of |w|^2 / 2; it must be positive, which makes the optimum unique.
        alpha: FedMix's alpha, in (0, 1]; 1 is the problem itself.

    Raises:
        InputError: the data are not for classification, or an argument is out of range.

    Example:
        >>> problem = rv.problems.logistic_data(data=rv.datasets.digits(parties=2), l2=0.1)  # doctest: +SKIP
    """
    if data.task != "classification":
        raise InputError(f"data={data.name} must be for classification, not {data.task}")
    check_range("logistic_data", "(0, inf)", advice="without it there may be no unique optimum", l2=l2)
    features = int(np.prod(data.input_shape))
    return MixedProblem(LearningProblem(logistic(features, data.outputs, l2=l2), data), alpha)
