r"""Fed+ and operator splitting as one family: personal anchors with over-relaxation.

.. code-block:: text

    z_k <- (1 - alpha) u_k + alpha P_k(u_k)      P_k(u) = argmin f_k(w) + sigma/2 |w - u|^2: the party's model w_k
    w~  <- argmin sum_k lambda_k env_{delta phi}(z_k - w~)                 the Moreau centre of the z_k
    a_k  = w~ + prox_{delta phi}(z_k - w~)                                 Fed+'s anchor
    u_k <- (1 - gamma) u_k + gamma [(1 - beta) z_k + beta a_k]

(1, 1, 1) is Fed+. With phi the indicator of {0} it is the scheme (24)-(26) with eta = 1/sigma, whose P_H the anchor
replaces. Centre and anchor together are one proximal map, A = prox_{delta Phi}(Z), of
Phi(A) = min_c sum_k lambda_k phi(a_k - c), which measures the disagreement of the models. So the theory of splitting
carries over, in the inner product weighted by lambda.

Proved for convex f_k, exact proximal steps, an exact centre and full participation:

* The fixed points are, for every alpha, beta in (0, 2] and gamma in (0, 1], the w_k, theta_k and w~ that minimise
  sum_k lambda_k [f_k(w_k) + beta/alpha sigma delta phi(theta_k) + s/2 |w_k - w~ - theta_k|^2], where
  s = sigma/(1 + alpha/beta - alpha): Fed+'s penalised problem (3), and (3) with half the delta for (2, 1, gamma).
  s is infinite only for alpha = beta = 2: then w_k = w~ + theta_k, Fed+'s own problem (2) with Psi = sigma delta phi.
* It converges to one if one exists and either gamma < 1 or both alpha, beta < 2 (a composition of averaged maps):
  Fed+ and Douglas-Rachford, (2, 2, 1/2), do. With gamma = 1 and alpha = 2 or beta = 2 the map is only nonexpansive,
  as Peaceman-Rachford, (2, 2, 1), which can oscillate without end; it is a contraction if the f_k are strongly convex
  and smooth.

Proof: with g_k = sigma (u_k - w_k), the gradient of f_k at w_k, u = z + beta (a - z) gives
alpha g_k / sigma = beta (a_k - z_k), where (z - a)/delta is a subgradient of Phi at a, and
a_k - w_k = (1 + alpha/beta - alpha) g_k / sigma: the optimality conditions.

Further convergence is observed, not proved (``benchmarks/relaxation.py``: the Euclidean norm, alpha and beta from 1/2
to 2, gamma 1/2 and 1, 1000 rounds). With gamma = 1 and exact steps, (2, beta < 2) converged on every convex loss;
(alpha, 2) oscillates on linear losses for every alpha, and (1/2, 2) also on least squares. With three gradient steps
instead of exact ones, and with half of the parties a round and stale replies of the others, every setting converged or
came steadily closer. On a small network with tanh 29 of 32 settings did; (1/2, 2, 1) oscillates. If both converge,
gamma = 1 needs about half as many rounds as gamma = 1/2.

Source: Fed+, (2), (3), (11); operator-splitting paper, (24)-(26), whose Theorems 6 and 7 are the case of consensus.
"""

from typing import Any, NamedTuple

from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info
from resolvent.algorithms.method import local_work
from resolvent.algorithms.methods.fedplus import AnchoredMethod, AnchorMessage
from resolvent.algorithms.methods.splitting import Relaxation
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.subproblem import Subproblem


class PersonalIterates(NamedTuple):
    """A party's state."""

    u: Vector  # u_k
    model: Vector  # w_k


class PersonalSplitting(AnchoredMethod):
    """The family in decentralised form: a party stores u_k and its model; z_k and the centre are sent.

    An absent party keeps both, and uses the present centre when it takes part again. The anchor's point is a_k, and
    ``sigma``, which must be positive, weighs |w_k - u_k|^2 / 2: it is 1/eta in the notation of splitting.

    Attributes:
        alpha: over-relaxation of the parties' step, in [0, 2].
        beta: over-relaxation of the anchor, in [0, 2].
        gamma: weight of the new iterate, in [0, 1].
        lam: start of local work, from 0 at the party's model (as in Fed+) to 1 at u_k (as in splitting).
    """

    alpha: ArrayLike = 1.0
    beta: ArrayLike = 1.0
    gamma: ArrayLike = 1.0
    lam: ArrayLike = 0.0

    def __check_init__(self) -> None:
        Relaxation(1.0, self.alpha, self.beta, self.gamma)  # raises outside their ranges
        check_range(self, "(0, inf)", advice="0 has no proximal step; for local training use local(...)",
                    sigma=self.sigma)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PersonalIterates:
        return PersonalIterates(w0, w0)

    @override
    def party(self, state: PersonalIterates, message: AnchorMessage, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PersonalIterates, Vector, Info]:
        u, w = state
        z = tree.lerp(u, w, self.alpha)
        a = self.anchor(message.centre, z, message.parameter)
        u = tree.lerp(u, tree.lerp(z, a, self.beta), self.gamma)
        w, info = local_work(self.solver, Subproblem(oracle, u, self.sigma), tree.lerp(w, u, self.lam), key, effort)
        return PersonalIterates(u, w), tree.lerp(u, w, self.alpha), info

    @override
    def personal_model(self, state: PersonalIterates, message: Any, oracle: Oracle) -> Vector:
        return state.model
