"""Problems by name, generated, with an optimum that is known in closed form."""

import jax.numpy as jnp
import numpy as np

from resolvent.data import generators
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError
from resolvent.problem import models
from resolvent.problem.logistic import LogisticProblem
from resolvent.problem.mixed import MixedProblem, mixed
from resolvent.problem.problem import LearningProblem, QuadraticProblem, SolvedProblem

__all__ = ["least_squares", "logistic_data", "logistic_regression"]


def least_squares(*, parties: int = 25, samples: int = 5000, features: int = 100, noise: float = 0.5,
                  heterogeneity: float = 0.0, alpha: float = 1.0, seed: int = 0) -> SolvedProblem:
    """Least squares with normal designs, f_k(w) = |A_k w - b_k|^2 / 2.

    The parties' answers are b_k = A_k (w + heterogeneity*v_k) + noise*e_k; the entries of A_k, w, v_k and e_k are
    standard normal. What is minimised is the mean over the parties (the paper has the sum). The paper's measure of
    heterogeneity, H = mean of |grad f_k|^2 at the optimum, is about
    samples*features*(noise^2 + samples*heterogeneity^2); the paper varies H and does not say how. Its three cases,
    H = 1.2e5, 7.6e6 and 1.9e8, are met by 0, 0.055 and 0.28. The defaults are the paper's sizes.
    Source: operator-splitting paper, A.1.

    Args:
        parties: how many parties.
        samples: rows of every A_k.
        features: the dimension of w.
        noise: standard deviation of the noise on b_k.
        heterogeneity: standard deviation of the parties' true weights around the common ones.
        alpha: FedMix's share of the shared model, in (0, 1]: below 1, of its objectives f_k(alpha w + (1-alpha) x_k).
        seed: of everything random.
    """
    for name, value, least in (("parties", parties, 1), ("samples", samples, 1), ("features", features, 1),
                               ("noise", noise, 0), ("heterogeneity", heterogeneity, 0)):
        if value < least:
            raise InputError(f"{name}={value} must be at least {least}")
    if parties * samples < features:
        raise InputError(f"parties={parties} times samples={samples} must be at least features={features}: with fewer "
                         "equations than unknowns there is no single optimum")
    rng = np.random.default_rng(seed)
    common = rng.normal(size=features)
    hessians, linears, constants = (np.empty((parties, *shape)) for shape in ((features, features), (features,), ()))
    for k in range(parties):  # one after the other: together the designs would be a hundred times the problem
        a = rng.normal(size=(samples, features))
        true = common + heterogeneity * rng.normal(size=features)
        b = a @ true + noise * rng.normal(size=samples)
        hessians[k], linears[k], constants[k] = a.T @ a, a.T @ b, b @ b / 2
    problem = QuadraticProblem(jnp.asarray(hessians), jnp.asarray(linears), jnp.asarray(constants),
                               jnp.full(parties, samples))
    return problem if alpha == 1 else mixed(problem, alpha)


def logistic_regression(*, parties: int = 10, samples: int = 1000, features: int = 100, heterogeneity: float = 0.0,
                        seed: int = 0) -> SolvedProblem:
    """Logistic regression with normal inputs, f_k(w) = sum_j log(1 + exp(-b_kj a_kj'w)) + |w|^2 / (2 m n).

    The samples are those of the data set splitting_logistic. What is minimised is the mean over the parties (the paper
    has the sum); f_k is a sum over samples, as the paper's steps of 1e-2 suppose. The defaults are the paper's sizes.
    Source: operator-splitting paper, A.1.

    Args:
        parties: how many parties (m).
        samples: samples of every party (n).
        features: the dimension of w.
        heterogeneity: standard deviation of the parties' true weights around the common ones.
        seed: of everything random.
    """
    data = generators.splitting_logistic(parties=parties, samples=samples, features=features,
                                         heterogeneity=heterogeneity, seed=seed)
    a, b = (np.asarray(part, np.float64).reshape(parties, samples, -1) for part in (data.x, data.y))
    return LogisticProblem(a, 2 * b[..., 0] - 1)


def logistic_data(*, data: FederatedData, l2: float = 0.01, alpha: float = 1.0) -> SolvedProblem:
    """Logistic regression on any classification data, whose optimum is found, to the precision, when it is made.

    f_k is the mean loss over party k's training samples and l2/2 |w|^2; what is minimised is their mean by size. With
    alpha below 1 the objectives are FedMix's, f_k(alpha w + (1 - alpha) x_k), and every party's own optimum x_k is
    found as well. Use precision: float64.

    Args:
        data: the parties' samples: a data set's name and its settings.
        l2: weight of |w|^2 / 2, positive: it makes the optimum one point.
        alpha: FedMix's share of the shared model, in (0, 1]; 1 is the problem itself.
    """
    if data.task != "classification":
        raise InputError(f"data={data.name} must be for classification, not {data.task}")
    if not l2 > 0:
        raise InputError(f"l2={l2} must be positive: without it there may be no single optimum")
    features = int(np.prod(data.input_shape))
    return MixedProblem(LearningProblem(models.logistic(features, data.outputs, l2=l2), data), alpha)
