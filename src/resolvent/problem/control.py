"""Linear-quadratic control: a federation of reinforcement-learning agents whose optimal policies are known.

Party k's system is x_{t+1} = A_k x_t + B_k u_t, and its policy is u_t = -K x_t. The objective is the cost

.. code-block:: text

    f_k(K) = E sum_t (x_t' Q x_t + u_t' R u_t) = tr P_K,   P_K = Q + K' R K + (A_k - B_k K)' P_K (A_k - B_k K)

for first states with mean zero and covariance I. Its minimiser is the Riccati gain, in closed form, and policy gradient
converges to it although f_k is not convex (Fazel, Ge, Kakade, Mesbahi: Global Convergence of Policy Gradient Methods
for the Linear Quadratic Regulator, ICML 2018). The minimiser of the mean cost of several systems has no closed form.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from typing_extensions import override

from resolvent.arguments import checked
from resolvent.errors import InputError, check_range
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem

__all__ = ["ControlOracle", "LinearQuadraticProblem", "linear_quadratic"]

_DOUBLINGS = 30  # steps of the Riccati iteration, each of which doubles its horizon


class ControlOracle(Oracle):
    """The cost of a policy on one system.

    Attributes:
        dynamics: A, [d, d].
        control: B, [d, m].
        state_cost: Q, [d, d], symmetric positive definite.
        control_cost: R, [m, m], symmetric positive definite.
    """

    dynamics: Float[Array, "d d"]
    control: Float[Array, "d m"]
    state_cost: Float[Array, "d d"]
    control_cost: Float[Array, "m m"]

    @override
    def value(self, w: Vector) -> Float[Array, ""]:
        """tr P_K from a linear system for the covariance sum_t x_t x_t'; infinite if the closed loop is not stable."""
        closed = self.dynamics - self.control @ w
        size = len(closed)
        cost = self.state_cost + w.T @ self.control_cost @ w
        identity = jnp.eye(size, dtype=closed.dtype)
        covariance = jnp.linalg.solve(jnp.eye(size * size, dtype=closed.dtype) - jnp.kron(closed, closed),
                                      identity.reshape(-1)).reshape(size, size)
        # The sum converges if and only if the solution of the linear system is positive definite.
        is_stable = jnp.all(jnp.linalg.eigvalsh(jax.lax.stop_gradient(covariance + covariance.T)) > 0)
        return jnp.where(is_stable, jnp.sum(cost * covariance), jnp.inf)

    @override
    def grad(self, w: Vector) -> Vector:
        gradient: Vector = jax.grad(self.value)(w)
        return gradient

    @override
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> Vector:
        """The full gradient, because the expectation is exact."""
        return self.grad(w)

    def optimal_gain(self) -> Float[Array, "m d"]:
        """The minimiser K = (R + B'PB)^-1 B'PA, where P solves the discrete algebraic Riccati equation."""
        identity = jnp.eye(len(self.dynamics), dtype=self.dynamics.dtype)

        def double(_: Array, abc: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            a, g, p = abc
            inverse = jnp.linalg.inv(identity + g @ p)
            return a @ inverse @ a, g + a @ inverse @ g @ a.T, p + a.T @ p @ inverse @ a

        spread = self.control @ jnp.linalg.solve(self.control_cost, self.control.T)
        p = jax.lax.fori_loop(0, _DOUBLINGS, double, (self.dynamics, spread, self.state_cost))[2]
        gain: Array = jnp.linalg.solve(self.control_cost + self.control.T @ p @ self.control,
                                       self.control.T @ p @ self.dynamics)
        return gain


class LinearQuadraticProblem(Problem):
    """Systems of N parties, one policy. The first policy is K = 0.

    Attributes:
        dynamics: the A_k, [N, d, d], each with a spectral radius below 1.
        controls: the B_k, [N, d, m].
        state_cost: Q, [d, d], symmetric positive definite.
        control_cost: R, [m, m], symmetric positive definite.

    Raises:
        InputError: the shapes do not match, a number is not finite, a cost is not symmetric positive definite, or a
            system is not stable without control.

    Example:
        >>> problem = rv.problems.LinearQuadraticProblem(jnp.array([[[0.5]]]), jnp.array([[[1.0]]]))
        >>> problem.optimal_gains().shape
        (1, 1, 1)
    """

    dynamics: Float[Array, "N d d"]
    controls: Float[Array, "N d m"]
    state_cost: Float[Array, "d d"]
    control_cost: Float[Array, "m m"]

    def __init__(self, dynamics: Float[Array, "N d d"], controls: Float[Array, "N d m"],
                 state_cost: Float[Array, "d d"] | None = None,
                 control_cost: Float[Array, "m m"] | None = None) -> None:
        self.dynamics, self.controls = jnp.asarray(dynamics), jnp.asarray(controls)
        matches = self.controls.ndim == 3 and self.dynamics.shape == (*self.controls.shape[:2], self.controls.shape[1])
        if not matches or self.controls.size == 0:
            raise InputError(f"LinearQuadraticProblem needs dynamics [N, d, d] and controls [N, d, m], got "
                             f"{self.dynamics.shape} and {self.controls.shape}")
        if not bool(jnp.isfinite(self.dynamics).all() & jnp.isfinite(self.controls).all()):
            raise InputError("LinearQuadraticProblem: dynamics and controls must be finite")
        parties, states, actions = self.controls.shape
        radii = np.abs(np.linalg.eigvals(np.asarray(self.dynamics))).max(axis=1)
        if radii.max() >= 1:
            raise InputError(f"LinearQuadraticProblem: system {radii.argmax()} has the spectral radius "
                             f"{radii.max():.3g}: it must be below 1, so that the cost of the first policy is finite")
        dtype = self.dynamics.dtype
        self.state_cost = jnp.eye(states, dtype=dtype) if state_cost is None else jnp.asarray(state_cost)
        self.control_cost = jnp.eye(actions, dtype=dtype) if control_cost is None else jnp.asarray(control_cost)
        for name, size in (("state_cost", states), ("control_cost", actions)):
            _check_cost(name, getattr(self, name), size)
        self.sizes = jnp.ones(parties, jnp.int32)
        self.splits, self.score_name, self.higher_is_better = ("train",), "excess_cost", False

    @override
    def init(self, key: Array) -> Vector:
        """The controller that does nothing: K = 0, [actions, states]."""
        _, states, actions = self.controls.shape
        return jnp.zeros((actions, states), self.dynamics.dtype)

    @override
    def oracle(self, k: Int[Array, ""]) -> ControlOracle:
        return ControlOracle(jnp.array(1), self.dynamics[k], self.controls[k], self.state_cost, self.control_cost)

    def optimal_gains(self) -> Float[Array, "N m d"]:
        """The optimal policy of each party."""
        gains: Array = jax.vmap(lambda k: self.oracle(k).optimal_gain())(jnp.arange(self.parties))
        return gains

    @override
    def split_sizes(self, split: int) -> Int[Array, " N"]:
        return self.sizes

    @override
    def evaluate_party(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> tuple[Array, Array]:
        """The cost, and its excess over the cost of the optimal policy, as a fraction of the latter."""
        oracle = self.oracle(k)
        cost, optimum = oracle.value(w), oracle.value(oracle.optimal_gain())
        return cost, (cost - optimum) / optimum

    @override
    def report(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> dict[str, Any]:
        """The cost, the excess cost, and the largest difference of an entry of K from the optimal policy's."""
        loss, score = self.evaluate_party(w, k, split)
        distance = jnp.max(jnp.abs(w - self.oracle(k).optimal_gain()))
        return {"loss": loss, self.score_name: score, "gain_error": distance}


def _check_cost(name: str, cost: Array, size: int) -> None:
    """Refuse a cost that is not a symmetric positive definite matrix [size, size]."""
    if cost.shape != (size, size):
        raise InputError(f"LinearQuadraticProblem: {name} needs the shape {(size, size)}, got {cost.shape}")
    matrix = np.asarray(cost)
    # A comparison with nan is false, so a matrix that is not finite is refused here as well.
    if not np.allclose(matrix, matrix.T) or not np.linalg.eigvalsh(matrix).min() > 0:
        raise InputError(f"LinearQuadraticProblem: {name} must be symmetric positive definite")


@checked
def linear_quadratic(*, parties: int = 10, states: int = 3, actions: int = 2, heterogeneity: float = 0.1,
                     radius: float = 0.8, seed: int = 0) -> LinearQuadraticProblem:
    """Random linear-quadratic control problems, for federated policy gradient with a known optimum of each party.

    The entries of A and B are normal; A is scaled to the spectral radius. Party k adds heterogeneity times normal
    numbers to both, and scales A_k again. Q and R are identities.

    Args:
        parties: number of parties.
        states: d, dimension of the state.
        actions: m, dimension of the action.
        heterogeneity: standard deviation of the parties' differences; 0: all have the same system.
        radius: spectral radius of every A_k, in (0, 1).
        seed: seed of all random numbers.

    Raises:
        InputError: a number is out of range.

    Example:
        >>> problem = rv.problems.linear_quadratic(parties=2, states=2, actions=1)
        >>> problem.optimal_gains().shape
        (2, 1, 2)
    """
    check_range("linear_quadratic", "[1, inf)", parties=parties, states=states, actions=actions)
    check_range("linear_quadratic", "[0, inf)", heterogeneity=heterogeneity, seed=seed)
    check_range("linear_quadratic", "(0, 1)", radius=radius)
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(states, states)), rng.normal(size=(states, actions))
    common = common[0] / np.abs(np.linalg.eigvals(common[0])).max(), common[1]
    dynamics = common[0] + heterogeneity * rng.normal(size=(parties, states, states))
    controls = common[1] + heterogeneity * rng.normal(size=(parties, states, actions))
    radii = np.abs(np.linalg.eigvals(dynamics)).max(axis=1)
    dtype = jnp.result_type(float)
    return LinearQuadraticProblem(jnp.asarray(radius * dynamics / radii[:, None, None], dtype),
                                  jnp.asarray(controls, dtype))
