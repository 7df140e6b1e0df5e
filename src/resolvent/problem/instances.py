"""Problems by name, generated, with an optimum that is known in closed form."""

import jax.numpy as jnp
import numpy as np

from resolvent.problem.errors import InputError
from resolvent.problem.problem import Problem, QuadraticProblem

__all__ = ["least_squares"]


def least_squares(*, parties: int = 25, samples: int = 5000, features: int = 100, noise: float = 0.5,
                  heterogeneity: float = 0.0, seed: int = 0) -> Problem:
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
    return QuadraticProblem(jnp.asarray(hessians), jnp.asarray(linears), jnp.asarray(constants),
                            jnp.full(parties, samples))
