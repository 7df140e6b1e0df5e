"""Personal models and a shared one: pFedMe, APFL and L2GD."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Replies
from resolvent.algorithms.keys import substep_key
from resolvent.algorithms.method import OnePhaseMethod, inexactness_if_recorded, local_work, memory_before
from resolvent.algorithms.methods.aggregation import AggregatingMethod
from resolvent.errors import InputError, check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.maps import Mixture, through
from resolvent.problem.oracle import Oracle, PartyMemory, remembering
from resolvent.problem.solvers.minibatches import scale_budget
from resolvent.problem.solvers.solver import GD, SGD, LocalSolver
from resolvent.problem.subproblem import Subproblem


class _EnvelopeDescent(NamedTuple):
    """The loop state of the steps on the envelope."""

    w: Vector  # w_k
    theta: Vector  # the last proximal point
    center: Vector  # w_k before the last step
    memory: dict[str, PartyMemory]  # of the solver and the oracle
    key: Array  # key of the next solve
    steps: Float[Array, ""]  # gradient steps of the solver so far


class PFedMe(AggregatingMethod):
    """pFedMe: the shared model descends on the parties' Moreau envelopes; a party uses its proximal point.

    .. code-block:: text

        party:   w_k = w~;  R times:  theta_k ~ argmin f_k + lam/2 |. - w_k|^2,  w_k <- w_k - eta*lam*(w_k - theta_k)
        server:  w~ <- (1 - beta) w~ + beta * mean(w_k)

    A straggler makes effort*R steps on the envelope, of which the last one may be solved with a part of the solver's
    work. lam (w - theta_k) is the gradient of the envelope min_theta f_k(theta) + lam/2 |theta - w|^2.
    A party stores theta_k.

    In the paper every party works and a sample of them replies; here only the sample works. As in the authors' code the
    first theta_k starts at w~ and each later one at its predecessor; the paper leaves it open.

    Attributes:
        steps: R.
    """

    solver: LocalSolver
    lam: Annotated[ArrayLike, "(0, inf)"] = 15.0
    eta: Annotated[ArrayLike, "(0, inf)"] = 0.005
    steps: Annotated[ArrayLike, "(0, inf)"] = 20
    beta: Annotated[ArrayLike, "(0, inf)"] = 1.0
    replies_models: ClassVar[bool] = True

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return w0

    @override
    def party(self, state: Vector, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        def descend(i: Array, carry: _EnvelopeDescent) -> _EnvelopeDescent:
            w, theta, _, memory, key, total = carry
            work = jnp.clip(effort * self.steps - i, 0, 1).astype(effort.dtype)
            near = Subproblem(remembering(oracle, memory), w, self.lam)
            theta, info = local_work(self.solver, near, theta, key, work)
            # The key changes after the solve, so that the first solve draws FedProx's minibatches.
            return _EnvelopeDescent(tree.lerp(w, theta, self.eta * self.lam), theta, w, info["memory"],
                                    substep_key(key, 1), total + info["steps"].astype(total.dtype))

        memory = {"": memory_before(self.solver, Subproblem(oracle, shared, self.lam), shared)}
        start = _EnvelopeDescent(shared, shared, shared, memory, key, jnp.zeros((), tree.dtype(shared)))
        w, theta, center, memory, _, total = jax.lax.fori_loop(0, scale_budget(self.steps, effort), descend, start)
        inexactness = inexactness_if_recorded(Subproblem(oracle, center, self.lam), theta, shared)
        return theta, w, {"model": theta, "steps": total, "memory": memory, **inexactness}

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        mean, info = self.aggregator(replies, shared, key)
        return tree.lerp(shared, mean, self.beta), info

    @override
    def personal_model(self, state: Vector, message: Vector, oracle: Oracle) -> Vector:
        return state


class APFLPartyState(NamedTuple):
    """A party's state."""

    model: Vector  # v_k
    alpha: Float[Array, ""]  # alpha_k, the weight of v_k in the mixture


class _ModelPair(NamedTuple):
    """The models that one local step moves together."""

    shared: Vector  # w_k
    personal: Vector  # v_k


class _JointObjective(Oracle):
    """f_k(w), and f_k(alpha v + (1 - alpha) w) as a function of v alone: a step on (w, v) descends both.

    Attributes:
        alpha: the weight of v.
    """

    inner: Oracle
    alpha: Float[Array, ""]

    def _personal(self, w: Vector) -> Oracle:
        return through(self.inner, Mixture(self.alpha, w))

    @property
    @override
    def has_random_layers(self) -> bool:
        return self.inner.has_random_layers

    @override
    def at_step(self, key: Array) -> "_JointObjective":
        return replace(self, inner=self.inner.at_step(key))

    @override
    def value(self, w: _ModelPair) -> Float[Array, ""]:
        """The sum. Its gradient in w differs from ``grad``, which holds w fixed in the second term."""
        return self.inner.value(w.shared) + self._personal(w.shared).value(w.personal)

    @override
    def grad(self, w: _ModelPair) -> _ModelPair:
        return _ModelPair(self.inner.grad(w.shared), self._personal(w.shared).grad(w.personal))

    @override
    def init_memory(self, w: _ModelPair) -> _ModelPair:
        return _ModelPair(self.inner.init_memory(w.shared), self.inner.init_memory(w.personal))

    @override
    def batch_grad(self, w: _ModelPair, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                   memory: Any = ()) -> tuple[_ModelPair, Any]:
        of_shared, of_personal = memory or ((), ())
        shared, of_shared = self.inner.batch_grad(w.shared, positions, mask, of_shared)
        personal, of_personal = self._personal(w.shared).batch_grad(w.personal, positions, mask, of_personal)
        return _ModelPair(shared, personal), memory and _ModelPair(of_shared, of_personal)


class APFL(AggregatingMethod):
    """APFL: a party's model is a mixture of its own and the shared one, in a proportion that it learns.

    .. code-block:: text

        party:   w_k = w~;   alpha_k <- clip(alpha_k - rate <v_k - w_k, grad f_k(m_k)>, 0, 1), once a round
                 each local step:  w_k <- w_k - eta grad f_k(w_k)  and  v_k <- v_k - eta alpha_k grad f_k(m_k)
        server:  w~ <- mean(w_k)

    with m_k = alpha_k v_k + (1 - alpha_k) w_k. The personal model is m_k with w~ for w_k. A party stores
    v_k and alpha_k.

    Both steps start from the same w_k and v_k and use the same minibatch; alpha_k's gradient is over all samples, at
    the first models of the round.
    """

    solver: SGD | GD
    alpha: Annotated[ArrayLike, "[0, 1]"] = 0.5
    alpha_rate: Annotated[ArrayLike, "[0, inf)"] = 0.1
    replies_models: ClassVar[bool] = True

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> APFLPartyState:
        return APFLPartyState(w0, jnp.asarray(self.alpha, tree.dtype(w0)))

    @override
    def party(self, state: APFLPartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[APFLPartyState, Vector, Info]:
        v, alpha = state
        slope = tree.full_dot(tree.sub(v, shared), oracle.grad(tree.lerp(shared, v, alpha)))
        alpha = jnp.clip(alpha - self.alpha_rate * slope, 0, 1).astype(alpha.dtype)
        start = _ModelPair(shared, v)
        joint = _JointObjective(oracle.samples, oracle, alpha, memory=_joined(oracle.memory),
                                recording=oracle.recording)
        (w, v), info = local_work(self.solver, Subproblem(joint, start), start, key, effort)
        return APFLPartyState(v, alpha), w, info | {"model": tree.lerp(w, v, alpha),
                                                    "memory": _divided(info["memory"])}

    @override
    def personal_model(self, state: APFLPartyState, message: Vector, oracle: Oracle) -> Vector:
        return oracle.model_after(tree.lerp(message, state.model, state.alpha), _MIXTURE)


_MIXTURE = "mixture"  # name of the memory of the gradients at m_k; the gradients at w_k have the name ""


def _joined(memory: dict[str, PartyMemory]) -> dict[str, PartyMemory]:
    """The memory of the joint objective from those of its two gradients."""
    return {"": PartyMemory(_ModelPair(memory[""].oracle, memory[_MIXTURE].oracle))} if memory else {}


def _divided(memory: dict[str, PartyMemory]) -> dict[str, PartyMemory]:
    return {"": PartyMemory(memory[""].oracle.shared), _MIXTURE: PartyMemory(memory[""].oracle.personal)}


class L2GDState(NamedTuple):
    """The server's state, which is also the message to every party."""

    mean: Vector  # y_bar
    pulls: Int[Array, ""]  # length of the next run of heads
    steps: Int[Array, ""]  # length of the next run of tails


class L2GD(OnePhaseMethod):
    """L2GD: loopless local gradient descent; parties keep their own models, which are pulled to their mean.

    .. code-block:: text

        min over y_1, ..., y_N of sum_k lambda_k (f_k(y_k) + lam/2 |y_k - y_bar|^2),   y_bar = sum_k lambda_k y_k

        flip a coin:  heads (p):    y_k <- y_k - (eta lam / p) (y_k - y_bar)
                      tails (1-p):  y_k <- y_k - eta / (1-p) grad f_k(y_k)

    Communication is only needed after a run of tails. So a round here is one run of heads, which leaves y_bar
    unchanged, so that its pulls are y_bar + (1 - eta lam/p)^pulls (y_k - y_bar), followed by one run of tails. The
    server draws the lengths of both runs, which replace the solver's number of steps. The first run is one step. eta,
    the solver's learning rate, is the paper's step over n.

    A party stores its model y_k. The server's y_bar is the mean of all N parties' models after every round, under any
    participation.
    """

    solver: SGD | GD
    lam: Annotated[ArrayLike, "[0, inf)"] = 0.1
    p: ArrayLike = 0.2
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        check_range(self, "(0, 1)", advice="use local(...) for 0 and dgd(...) for 1", p=self.p)
        pull = self._pull
        if isinstance(pull, int | float) and pull > 1:
            raise InputError(f"L2GD pulls by learning_rate*lam/p = {pull:.3g}, beyond the mean: lower the learning "
                             "rate or lam, or raise p")

    @property
    def _pull(self) -> ArrayLike:
        return self.solver.learning_rate * self.lam / self.p

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> L2GDState:
        return L2GDState(w0, jnp.array(0, jnp.int32), jnp.array(1, jnp.int32))

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return w0

    @override
    def party(self, model: Vector, message: L2GDState, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        distance = jnp.power(1 - jnp.asarray(self._pull, tree.dtype(model)), message.pulls)
        pulled = tree.lerp(message.mean, model, distance)
        w, info = local_work(self._steps(message.steps), Subproblem(oracle, pulled), pulled, key, effort)
        return w, tree.sub(w, model), info

    def _steps(self, steps: Int[Array, ""]) -> SGD | GD:
        rate = self.solver.learning_rate / (1 - self.p)
        if isinstance(self.solver, SGD):
            return replace(self.solver, learning_rate=rate, steps=steps, epochs=None)
        return replace(self.solver, learning_rate=rate, steps=steps)

    @override
    def server(self, state: L2GDState, replies: Replies, key: Array) -> tuple[L2GDState, Info]:
        mean = tree.axpy(1, replies.total(replies.payload), state.mean)
        # In float32, so that the same lengths are drawn in both precisions.
        p = jnp.asarray(self.p, jnp.float32)
        pulls = jax.random.geometric(substep_key(key, 0), 1 - p, dtype=jnp.int32)
        steps = jax.random.geometric(substep_key(key, 1), p, dtype=jnp.int32)
        return L2GDState(mean, pulls, steps), {"pulls": state.pulls, "local_steps": state.steps}

    @override
    def personal_model(self, state: Vector, message: L2GDState, oracle: Oracle) -> Vector:
        return state

    @override
    def server_model(self, state: L2GDState) -> Vector:
        return state.mean
