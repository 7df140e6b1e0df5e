"""Fine-tuning: every party continues training from its personal model on its own samples before it uses the model."""

import jax.numpy as jnp
from typing_extensions import override

from resolvent.algorithms.algorithm import Message, PartyState
from resolvent.algorithms.combinators.combinator import Combinator
from resolvent.algorithms.keys import root_key
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["FineTuned"]


class FineTuned(Combinator):
    """The parties train the inner algorithm's personal models further before use, on f_k; the rounds are unchanged.

    Source: the use of Reptile's and FedAvg's shared models in Nichol, Achiam, Schulman, and in the FedMix poster's
    comparison. The result of fine-tuning is not sent back.

    Attributes:
        inner: any algorithm.
        solver: local solver of the further training; its order of minibatches is the same each time.

    Example:
        >>> algorithm = rv.combinators.FineTuned(rv.fedavg(rv.SGD(0.1)), rv.SGD(0.01, epochs=1))
    """

    solver: LocalSolver

    @override
    def personal_model(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        start = self.inner.personal_model(state, message, oracle)
        # A fixed key, so that asking twice gives the same model.
        return self.solver(Subproblem(oracle, start), start, root_key(0), jnp.ones(()))[0]
