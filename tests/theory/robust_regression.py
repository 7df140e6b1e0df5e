"""A nonconvex problem whose smoothness is known."""

import jax.numpy as jnp
import numpy as np

import resolvent as rv

__all__ = ["PARTIES", "RobustRegression"]

PARTIES = 6


class RobustRegression:
    """Regression with the nonconvex loss r^2/(1 + r^2), whose second derivative is at most 2, in NumPy."""

    def __init__(self):
        rng = np.random.default_rng(3)
        self.x, self.y = 2 * rng.normal(size=(PARTIES, 8, 3)), 3 * rng.normal(size=(PARTIES, 8))
        self.smooth = 2 * max(np.linalg.eigvalsh(x.T @ x / 8).max() for x in self.x)

    def problem(self):
        model = rv.models.from_functions(lambda key: jnp.ones(3), lambda w, x: x @ w,
                                         loss=lambda output, y: (output - y)**2 / (1 + (output - y)**2))
        data = rv.FederatedData.from_arrays([*self.x], [*self.y], validation=0, test=0)
        return rv.problems.LearningProblem(model, data)

    def values(self, w):
        r = np.einsum("kni,ki->kn", self.x, w) - self.y
        return (r**2 / (1 + r**2)).mean(axis=1)

    def gradients(self, w):
        r = np.einsum("kni,ki->kn", self.x, w) - self.y
        return np.einsum("kn,kni->ki", 2 * r / (1 + r**2)**2, self.x) / 8
