r"""Fed+ and operator splitting as one family: personal anchors with over-relaxation.

.. code-block:: text

    z_k <- (1 - alpha) u_k + alpha P_k(u_k)      P_k(u) = argmin f_k(w) + sigma/2 |w - u|^2: the party's model w_k
    w~  <- argmin sum_k lambda_k env_{delta phi}(z_k - w~)                 the Moreau centre of the z_k
    a_k  = w~ + prox_{delta phi}(z_k - w~)                                 Fed+'s anchor
    u_k <- (1 - gamma) u_k + gamma [(1 - beta) z_k + beta a_k]

(1, 1, 1) is Fed+; phi the indicator of {0} is the grand scheme (24)-(26) with eta = 1/sigma, whose P_H the anchor
replaces. Centre and anchor together are one proximal map, A = prox_{delta Phi}(Z), of
Phi(A) = min_c sum_k lambda_k phi(a_k - c), how far the models are from agreement: so all of splitting's theory carries
over, in the inner product weighted by lambda.

What is proved, for convex f_k, exact proximal steps, an exact centre and full participation:

* The fixed points are, for every alpha, beta in (0, 2] and gamma in (0, 1], the w_k, theta_k and w~ that minimise
  sum_k lambda_k [f_k(w_k) + beta/alpha sigma delta phi(theta_k) + s/2 |w_k - w~ - theta_k|^2], where
  s = sigma/(1 + alpha/beta - alpha): Fed+'s penalised problem (3), and (3) with half the delta for (2, 1, gamma).
  Only for alpha = beta = 2 is s infinite: then w_k = w~ + theta_k, Fed+'s own problem (2) with Psi = sigma delta phi.
* It converges to one if one exists and either gamma < 1 or both alpha, beta < 2 (a composition of averaged maps):
  Fed+ and Douglas-Rachford, (2, 2, 1/2), do. With gamma = 1 and a 2 the map is nonexpansive and no more, as
  Peaceman-Rachford, (2, 2, 1), which can swing for ever; it is a contraction where the f_k are strongly convex and
  smooth.

Proof: with g_k = sigma (u_k - w_k), the gradient of f_k at w_k, u = z + beta (a - z) gives
alpha g_k / sigma = beta (a_k - z_k), where (z - a)/delta is a subgradient of Phi at a, and
a_k - w_k = (1 + alpha/beta - alpha) g_k / sigma: the optimality conditions.

Whatever else converges is observed only (``benchmarks/relaxation.py``: the Euclidean norm, alpha and beta from 1/2 to
2, gamma 1/2 and 1, 1000 rounds). With gamma = 1 and exact steps, (2, beta < 2) settled on every convex loss; (alpha, 2)
swings on linear losses for every alpha, and (1/2, 2) on least squares too. With three gradient steps in place of exact
ones, and with half of the parties a round and the others' replies remembered, every setting settled or came steadily
nearer. On a small network with tanh 29 of 32 did; (1/2, 2, 1) swings. Where both settle, gamma = 1 needs about half
the rounds of 1/2.

Source: Fed+, (2), (3), (11); operator-splitting paper, (24)-(26), whose Theorems 6 and 7 are the case of consensus.
"""

from typing import ClassVar

from jaxtyping import Array, ArrayLike, Float

from resolvent.algorithms.aggregators.aggregator import Aggregator
from resolvent.algorithms.algorithm import Info, Method, Phase, Replies, local_work
from resolvent.algorithms.methods.fedplus import Anchor
from resolvent.algorithms.methods.splitting import Relaxation
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["PersonalSplitting"]

Own = tuple[Vector, Vector]


class PersonalSplitting(Method):
    """The family, in the decentralised form: a party keeps u_k and its model; z_k and the centre travel.

    An absent party keeps both, and catches up with the centre that it finds when it is back.

    Attributes:
        solver: the local solver.
        anchor: from the centre and z_k to a_k.
        aggregator: of the z_k; for the theory, the ``MoreauCentre`` of the anchor's penalty and delta.
        sigma: the penalty on |w_k - u_k|^2 / 2, positive; 1/eta in the words of splitting.
        alpha: over-relaxation of the parties' step, in [0, 2].
        beta: over-relaxation of the anchor, in [0, 2].
        gamma: share of the new iterate, in [0, 1].
        lam: where local work starts, 0 at the own model (as Fed+), 1 at u_k (as splitting).
    """

    solver: LocalSolver
    anchor: Anchor
    aggregator: Aggregator
    sigma: ArrayLike
    alpha: ArrayLike = 1.0
    beta: ArrayLike = 1.0
    gamma: ArrayLike = 1.0
    lam: ArrayLike = 0.0
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        Relaxation(1.0, self.alpha, self.beta, self.gamma)  # refuses what is out of range
        if isinstance(self.sigma, int | float) and not self.sigma > 0:
            raise ValueError(f"sigma={self.sigma} must be positive: without it there is no proximal step; "
                             "for parties alone use local(...)")

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> Vector:
        """The server holds the centre."""
        self.anchor.check(len(weights))
        return w0

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Own:
        """U and the model; all at the first model, from which no anchor moves."""
        return w0, w0

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One phase."""
        return (Phase(lambda centre, k: (centre, self.anchor.sent(k)), self._party, self._server),)

    def _party(self, own: Own, message: tuple[Vector, Vector], oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[Own, Vector, Info]:
        (u, w), (centre, sent) = own, message
        z = tree.lerp(u, w, self.alpha)
        u = tree.lerp(u, tree.lerp(z, self.anchor(centre, z, sent), self.beta), self.gamma)
        w, info = local_work(self.solver, Subproblem(oracle, u, self.sigma), tree.lerp(w, u, self.lam), key, effort)
        return (u, w), tree.lerp(u, w, self.alpha), info

    def _server(self, centre: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        return self.aggregator(replies)

    def personal_model(self, state: Own, message: tuple[Vector, Vector], oracle: Oracle) -> Vector:
        """The party's own model."""
        return state[1]

    def server_model(self, state: Vector) -> Vector:
        """The robust centre."""
        return state
