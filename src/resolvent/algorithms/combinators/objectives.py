"""The inner algorithm on other objectives: meta-learning, mixtures with a party's own optimum, worst points nearby."""

from typing import Annotated

import equinox as eqx
import jax
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Reply
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty, Wrapped
from resolvent.algorithms.methods.own_optimum import own_optimum
from resolvent.algorithms.per_party import as_numbers, check_length, of_party
from resolvent.math.tree import Vector
from resolvent.problem.maps import Ascent, GradientStep, Mixture, through
from resolvent.problem.models.stateful import ParamsAndState, params_of, with_params
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver


class MetaLearned(Combinator):
    """The inner algorithm on the objectives f_k(w - gamma grad f_k(w)); a party adapts the model before use.

    .. code-block:: text

        min over w of sum_k lambda_k f_k(w - gamma grad f_k(w))
        party k's gradient:  (I - gamma H_k(w)) grad f_k(w - gamma grad f_k(w)),   H_k the Hessian of f_k

    With FedAvg inside this is Per-FedAvg. A first-order step replaces the bracket by I; a Hessian-free step takes its
    product with the gradient from two more gradients.

    Source: Finn, Abbeel, Levine, *Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks*; Fallah, Mokhtari,
    Ozdaglar, *Personalized Federated Learning: A Meta-Learning Approach*, Algorithm 1; FedMix, (1).

    Attributes:
        inner: any algorithm.
        step: the gradient step inside the objective, and how its derivative is computed.
        steps: number of such steps, at least 0, over all its samples, that a party makes before it uses a model.

    Example:
        >>> step = rv.problems.GradientStep(0.1)
        >>> algorithm = rv.combinators.MetaLearned(rv.fedavg(rv.SGD(0.1)), step=step)
    """

    step: GradientStep = eqx.field(kw_only=True)
    steps: Annotated[ArrayLike, "[0, inf)"] = eqx.field(kw_only=True, default=1)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Wrapped:
        return super().init_party(w0, through(oracle, self.step), key)

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Reply, Info]:
        state, reply, info = super().party(inner, state, message, through(oracle, self.step), key, effort, phase)
        if "model" in info:  # a phase that only measures, such as FedDANE's first, has none
            info = info | {"model": self.adapted(info["model"], oracle)}
        return state, reply, info

    def adapted(self, w: Vector, oracle: Oracle) -> Vector:
        """``w`` after the steps on f_k."""
        return jax.lax.fori_loop(0, self.steps, lambda _, v: self.step(v, oracle.grad), w)

    @override
    def personal_model(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> Vector:
        model = super().personal_model(state, message, through(oracle, self.step))
        if isinstance(model, ParamsAndState):
            oracle = oracle.with_model_state(model.state)
        return with_params(model, self.adapted(params_of(model), oracle))


class ExplicitMixture(Combinator):
    """The inner algorithm on the parties' mixtures of the shared model and their own optimum.

    .. code-block:: text

        x_k = argmin f_k,   T_k(w) = alpha_k w + (1 - alpha_k) x_k,   min over w of sum_k lambda_k f_k(T_k(w))

    A party computes x_k once, stores it, and uses T_k(w). alpha_k = 1 is the inner algorithm on f_k, alpha_k = 0 is
    x_k. If all alpha_k = beta, the variance of the personal models is (1 - beta)^2 that of the x_k, so it falls as beta
    grows (errata 10). Source: Gasanov, Khaled, Horvath, Richtarik, *FedMix* (FLIX), (FedMix).

    The inner algorithm's first party state is computed on f_k itself, which has the same optimum as the mixture.

    Attributes:
        inner: any algorithm.
        solver: approximates each party's own optimum, once.
        alpha: weight of the shared model, in [0, 1]; one number, or [N], of which each party is sent its own.
        repeats: number of consecutive runs of the solver.

    Raises:
        InputError: when the run starts, alpha does not have one number per party.

    Example:
        >>> solver = rv.SGD(0.1)
        >>> algorithm = rv.combinators.ExplicitMixture(rv.fedavg(solver), solver, alpha=0.5)
    """

    solver: LocalSolver
    alpha: Annotated[ArrayLike, "[0, 1]"] = eqx.field(converter=as_numbers, default=0.5)
    repeats: Annotated[ArrayLike, "[1, inf)"] = 1

    @override
    def check_settings(self, parties: int) -> None:
        check_length("alpha", self.alpha, parties)

    @override
    def init_party_extra(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        """x_k."""
        return own_optimum(self.solver, self.repeats, w0, oracle, key)

    @override
    def message_extra(self, state: Wrapped, k: Int[Array, ""], phase: int) -> Float[Array, ""]:
        """alpha_k."""
        return of_party(self.alpha, k)

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Reply, Info]:
        mixture = Mixture(message.extra, state.extra)
        after, reply, info = super().party(inner, state, message, through(oracle, mixture), key, effort, phase)
        if "model" in info:
            info = info | {"model": mixture(info["model"], oracle.grad)}
        return after, reply, info

    @override
    def personal_model(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> Vector:
        mixture = Mixture(message.extra, state.extra)
        model = super().personal_model(state, message, through(oracle, mixture))
        return with_params(model, mixture(params_of(model), oracle.grad))


class SharpnessAware(Combinator):
    """The inner algorithm with sharpness-aware gradients of f_k; models are evaluated without the ascent step.

    .. code-block:: text

        every local gradient is grad f_k(w + rho grad f_k(w)/|grad f_k(w)|), both on the same minibatch

    With FedAvg inside this is FedSAM, with ``PrimalDual`` FedSpeed.

    Source: Qu, Li, Duan, Liu, Tang, Lu, *Generalized Federated Learning via Sharpness Aware Minimization*, Algorithm 1.

    Attributes:
        inner: any algorithm.
        ascent: the step to the point whose gradient is used.

    Example:
        >>> inner = rv.scaffold(rv.SGD(0.1, batch_size=20, epochs=1))
        >>> algorithm = rv.combinators.SharpnessAware(inner, ascent=rv.problems.Ascent(0.05))
    """

    ascent: Ascent = eqx.field(kw_only=True)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Wrapped:
        return super().init_party(w0, through(oracle, self.ascent), key)

    @override
    def party(self, inner: InnerParty, state: Wrapped, message: Wrapped, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[Wrapped, Reply, Info]:
        return super().party(inner, state, message, through(oracle, self.ascent), key, effort, phase)

    @override
    def personal_model(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> Vector:
        return super().personal_model(state, message, through(oracle, self.ascent))
