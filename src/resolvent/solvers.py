"""Local solvers: how a party minimises its subproblem.

``SGD`` and ``GD`` make gradient steps, ``OptaxSolver`` steps of any optax optimizer (``momentum`` and ``adam`` are two
of them ready-made; ``traced_optimizer`` makes one whose learning rate does not compile again, ``optax_solver`` one by
its name). ``LBFGS`` minimises over all samples, ``Newton`` models of few parameters, and ``ClosedForm`` solves
quadratic problems exactly. ``SVRG`` makes minibatch steps with reduced variance, and ``DPSGD`` protects single samples
by clipping and noise. A solver of your own derives from ``LocalSolver``. Minibatches are ``Shuffled``, or
``Consecutive`` for time series.
"""

from resolvent.problem.solvers.dpsgd import DPSGD
from resolvent.problem.solvers.lbfgs import LBFGS
from resolvent.problem.solvers.minibatches import Batches, Consecutive, Shuffled
from resolvent.problem.solvers.newton import Newton
from resolvent.problem.solvers.optax_solvers import OptaxSolver, adam, momentum, optax_solver
from resolvent.problem.solvers.optimizers import traced_optimizer
from resolvent.problem.solvers.solver import GD, SGD, ClosedForm, LocalSolver
from resolvent.problem.solvers.svrg import SVRG

__all__ = ["SGD", "GD", "OptaxSolver", "momentum", "adam", "optax_solver", "traced_optimizer", "LBFGS", "Newton",  # noqa: RUF022
           "DPSGD", "SVRG", "ClosedForm", "LocalSolver", "Shuffled", "Consecutive", "Batches"]
