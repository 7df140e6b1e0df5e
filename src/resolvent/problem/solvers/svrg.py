"""Stochastic gradients with reduced variance: the local work of FedProx-VR."""

from typing import Annotated

import equinox as eqx
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import NO_MEMORY, PartyMemory
from resolvent.problem.solvers.minibatches import Batches, MinibatchBudget, Shuffled, Stop, over_minibatches
from resolvent.problem.solvers.solver import GradientSolver, MinibatchSolver, ProximalStep, proximal_step
from resolvent.problem.subproblem import Subproblem


class SVRG(GradientSolver, MinibatchSolver):
    """Minibatch steps whose gradients have reduced variance, from one full gradient at the start of the local work.

    With v the start, g_B a minibatch gradient and g the full gradient of f_k + <linear, .>, each step is that of SGD
    along g_B(w) - g_B(v) + g(v), which is exact at w = v. Close to v the noise of minibatches is small, so that a
    constant step size suffices when the shared model converges.

    Attributes:
        learning_rate: eta, the step size.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        epochs: passes over the party's samples; a straggler makes ceil(effort * epochs). Exclusive with ``steps``.
        steps: gradient steps; a straggler makes ceil(effort * steps).
        proximal: the ``implicit`` or the ``explicit`` step, see ``SGD``.
        stop: a straggler stops after an ``epoch``, or after any ``step``.
        batches: chooses the minibatches.

    Raises:
        InputError: a number is not positive, or both ``epochs`` and ``steps`` are set; in the first round, the model
            has random layers, such as dropout, whose full gradient is not defined.

    Example:
        >>> algorithm = rv.fedprox(rv.solvers.SVRG(0.1, batch_size=20, epochs=2), mu=0.1)

    References:
        Johnson, Zhang: Accelerating Stochastic Gradient Descent using Predictive Variance Reduction, NeurIPS 2013.

        Dinh, Tran, Nguyen, Bao, Zomaya, Zhou: Federated Learning with Proximal Stochastic Variance Reduced Gradient
        Algorithms, ICPP 2020, Algorithm 1 (FedProxVR with SVRG).
    """

    batch_size: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=20)
    epochs: Annotated[ArrayLike | None, "(0, inf)"] = None
    steps: Annotated[ArrayLike | None, "(0, inf)"] = None
    proximal: ProximalStep = eqx.field(static=True, default="implicit")
    stop: Stop = eqx.field(static=True, default="epoch")
    batches: Batches = Shuffled()

    @property
    @override
    def budget(self) -> MinibatchBudget:
        return MinibatchBudget(self.batch_size, self.epochs, self.steps, self.stop)

    @override
    def work(self, samples: Int[Array, " C"]) -> Float[Array, " C"]:
        return samples + 2 * self.budget.work(samples)

    @override
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array, effort: Float[Array, ""],
                 memory: PartyMemory = NO_MEMORY) -> tuple[Vector, Int[Array, ""], PartyMemory]:
        if subproblem.oracle.has_random_layers:
            raise InputError("SVRG needs a model without random layers, such as dropout: use SGD")
        full = subproblem.smooth(start)

        def step(w: Vector, of_step: Subproblem, positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> Vector:
            difference = tree.sub(of_step.batch_smooth(w, positions, mask)[0],
                                  of_step.batch_smooth(start, positions, mask)[0])
            return proximal_step(of_step, w, tree.axpy(1, difference, full), self.learning_rate, self.proximal)

        return *over_minibatches(step, start, subproblem, key, effort, self.budget, self.batches), memory
