"""S-DANE, a method of the table that is no method of the library: it was added as everybody adds one.

Source: Jiang, Rodomanov, Stich: Stabilized Proximal-Point Methods for Federated Optimization, 2024, Algorithm 1, with
mu = 0. As FedDANE, but the prox-centre v makes a step along the gradients at the parties' solutions:

    x_k = argmin f_k(x) + <mean grad f(v) - grad f_k(v), x> + lam/2 |x - v|^2
    v <- v - 1/lam mean of grad f_k(x_k);  the model is the mean of x_k
"""

from typing import Any, ClassVar, NamedTuple

from resolvent.extend import LocalSolver, Method, Phase, Subproblem, local_work, tree

TRIED = {"lam": (1.0, 10.0)}
POWER = -1  # lam is the weight of a squared distance


class _State(NamedTuple):
    model: Any  # the mean of x_k
    centre: Any  # v
    gradient: Any  # the mean of grad f_k(v)


class SDANE(Method):
    """S-DANE: two exchanges in a round."""

    solver: LocalSolver
    lam: float = 1.0
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    def init(self, w0: Any, shares: Any) -> _State:
        """Begin with the first model."""
        return _State(w0, w0, w0)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The mean gradient at the centre; then the solutions, and the gradients at them."""
        return (Phase(lambda s, k: s.centre, lambda stored, v, oracle, key, effort: (stored, oracle.grad(v), {}),
                      lambda s, replies, key: (s._replace(gradient=replies.mean()), {})),
                Phase(lambda s, k: s, self._solve, self._move))

    def _solve(self, stored: Any, s: _State, oracle: Any, key: Any, effort: Any) -> Any:
        subproblem = Subproblem(oracle, s.centre, self.lam, tree.sub(s.gradient, oracle.grad(s.centre)))
        x, info = local_work(self.solver, subproblem, s.centre, key, effort)
        return stored, (x, oracle.grad(x)), info

    def _move(self, s: _State, replies: Any, key: Any) -> Any:
        model, gradient = (replies.mean(part) for part in replies.payload)
        return s._replace(model=model, centre=tree.axpy(-1 / self.lam, gradient, s.centre)), {}

    def model_message(self, state: _State, k: Any) -> Any:
        """What a party uses is the mean, not the centre of the first exchange."""
        return state.model

    def personal_model(self, state: Any, message: Any, oracle: Any) -> Any:
        """The shared model."""
        return message

    def server_model(self, state: _State) -> Any:
        """The shared model."""
        return state.model
