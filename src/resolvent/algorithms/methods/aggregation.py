"""Averages and other aggregates of the parties' models: FedAvg, FedProx, robust aggregation, FedExP and FedNova."""

from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.aggregators.aggregator import Aggregator, Mean
from resolvent.algorithms.algorithm import Info, PartyState, Replies
from resolvent.algorithms.cohort import StragglerPolicy
from resolvent.algorithms.method import SharedModelMethod, local_work
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import GD, SGD, LocalSolver
from resolvent.problem.subproblem import Subproblem


class AggregatingMethod(SharedModelMethod):
    """A method whose server replaces the shared model by the aggregate of the replies.

    Attributes:
        aggregator: A; with another one than the mean it is the method's robust form.
    """

    aggregator: Aggregator = eqx.field(kw_only=True, default=Mean())

    @property
    @override
    def needs_individual_replies(self) -> bool:
        return not self.aggregator.linear

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        return self.aggregator(replies, shared, key)


class ModelAggregation(AggregatingMethod):
    r"""Model aggregation: FedAvg, FedProx, RFA and the coordinate median.

    .. math:: w_k \approx \operatorname{argmin} f_k(w) + \tfrac\mu2\|w-\tilde w\|^2 \text{ from } \tilde w, \qquad
              \tilde w \leftarrow \mathcal A(w_1, \dots, w_N)

    mu = 0 with the mean is FedAvg (McMahan et al.), mu > 0 is FedProx (Li et al., Algorithm 2), the geometric median is
    RFA (Pillutla et al.) and the coordinate median is that of Yin et al. A party stores nothing.

    Attributes:
        stragglers: ``drop`` or ``keep`` the partial work of stragglers; None: as the run says.
    """

    solver: LocalSolver
    mu: Annotated[ArrayLike, "[0, inf)"] = 0.0
    stragglers: StragglerPolicy | None = eqx.field(static=True, default=None, kw_only=True)
    replies_models: ClassVar[bool] = True

    @property
    @override
    def straggler_policy(self) -> StragglerPolicy | None:
        return self.stragglers

    @override
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Vector, Info]:
        w, info = local_work(self.solver, Subproblem(oracle, shared, self.mu), shared, key, effort)
        return state, w, info


class MeasuredUpdate(NamedTuple):
    """A party's reply."""

    change: Vector  # d_k
    squared_norm: Float[Array, ""]  # |d_k|^2


class FedExP(SharedModelMethod):
    """FedExP: FedAvg with an extrapolated server step.

    .. code-block:: text

        party:   d_k = w_k - w~ after the local work on f_k;   reply d_k and |d_k|^2
        server:  w~ <- w~ + step * mean(d_k),   step = max(1, mean(|d_k|^2) / (2 (|mean(d_k)|^2 + epsilon)))

    The parties send their squared norms, so that the server needs means only.
    """

    solver: LocalSolver
    epsilon: Annotated[ArrayLike, "(0, inf)"] = 1e-3
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    @override
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, MeasuredUpdate, Info]:
        w, info = local_work(self.solver, Subproblem(oracle, shared), shared, key, effort)
        change = tree.sub(w, shared)
        return state, MeasuredUpdate(change, tree.full_dot(change, change)), info

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        mean = replies.mean()
        squared = tree.full_dot(mean.change, mean.change)
        step = jnp.maximum(1, mean.squared_norm / (2 * (squared + self.epsilon)))
        return tree.axpy(step, mean.change, shared), {"server_step": step}


class NormalizedUpdate(NamedTuple):
    """A party's reply."""

    direction: Vector  # d_k, the mean step
    total: Float[Array, ""]  # |a_k|, the total weight of the gradients


class FedNova(SharedModelMethod):
    """FedNova: averaging that does not weigh parties by their number of steps.

    .. code-block:: text

        party:   w_k = tau_k gradient steps on f_k from w~;   d_k = (w_k - w~) / |a_k|
        server:  w~ <- w~ + mean(|a_k|) * mean(d_k)

    |a_k| is the sum of the weights with which the tau_k gradients enter w_k. With plain steps it is tau_k; with
    momentum of factor rho, which begins at zero, it is (tau_k - rho (1 - rho^tau_k) / (1 - rho)) / (1 - rho).

    Both means are over the replies, with their weights.
    """

    solver: LocalSolver
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        if not isinstance(self.solver, SGD | GD) and self.solver.heavy_ball is None:
            raise InputError(f"FedNova needs plain gradient steps, got {type(self.solver).__name__}: use SGD or GD, or "
                             "rv.solvers.momentum(..., keep=False)")

    @override
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, NormalizedUpdate, Info]:
        w, info = local_work(self.solver, Subproblem(oracle, shared), shared, key, effort)
        total = _total_weight(info["steps"], self.solver.heavy_ball)
        direction = tree.map2(lambda a, b: (a - b) / jnp.maximum(total, 1), w, shared)
        return state, NormalizedUpdate(direction, total), info

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        mean = replies.mean()
        return tree.axpy(mean.total, mean.direction, shared), {}


def _total_weight(steps: Float[Array, ""], momentum: ArrayLike | None) -> Float[Array, ""]:
    """|a_k|, the sum of the weights of the gradients after this number of steps."""
    if momentum is None:
        return steps
    rho = jnp.asarray(momentum, steps.dtype)
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
