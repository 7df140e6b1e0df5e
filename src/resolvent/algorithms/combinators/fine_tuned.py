r"""Fine-tuning: every party trains on from what it is given, with its own samples, and uses that.

.. code-block:: text

    a party uses   solve f_k from (what the inner algorithm deploys);   the rounds are the inner algorithm's

Source: what Reptile's and FedAvg's shared models are for in Nichol, Achiam, Schulman, and in the FedMix poster's
comparison; the parties' training is not fed back.
"""

import jax
import jax.numpy as jnp

from resolvent.algorithms.algorithm import Message, PartyState
from resolvent.algorithms.combinators.combinator import Combinator
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["FineTuned"]


class FineTuned(Combinator):
    """An algorithm whose models the parties train on before they use them; the rounds go on unchanged.

    Attributes:
        inner: any algorithm.
        solver: how a party trains on; its order of minibatches is the same each time.
    """

    solver: LocalSolver

    def personal_model(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        """What the inner algorithm deploys, after the solver's work on f_k."""
        start = self.inner.personal_model(state, message, oracle)
        return self.solver(Subproblem(oracle, start), start, jax.random.key(0), jnp.ones(()))[0]
