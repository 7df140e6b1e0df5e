"""The baselines of portfolio selection, each a strategy: without learning, online, and in hindsight.

Those in hindsight are computed from the prices on which they are evaluated, so they cannot be traded. They bound the
other strategies of their class from above, up to the costs of trading.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from experiments.portfolio import simplex
from experiments.portfolio.strategies import OLMAR, ONS, BuyAndHold, ConstantRebalanced, Strategy
from resolvent.arguments import checked
from resolvent.errors import check_range

_MAX_STEPS = 50  # 3 to 6 Newton steps are usual
_FULL_STEP_DECREMENT = 0.25  # below this Newton decrement a full step converges quadratically


@checked
def cash(assets: int) -> BuyAndHold:
    """Hold cash only.

    Args:
        assets: m, the number of assets without cash.

    Raises:
        InputError: there is no asset.

    Example:
        >>> portfolio.cash(2).weights.tolist()
        [1.0, 0.0, 0.0]
    """
    return BuyAndHold(_uniform(assets, in_cash=True, in_assets=False))


@checked
def ubah(assets: int) -> BuyAndHold:
    """UBAH, uniform buy and hold: buy the same amount of each asset on the first day and never trade again.

    With the cost rate c its wealth after T days is (1 - c) mean_i(v_{i,T} / v_{i,0}).

    Args:
        assets: m, the number of assets without cash.

    Raises:
        InputError: there is no asset.

    Example:
        >>> portfolio.ubah(2).weights.tolist()
        [0.0, 0.5, 0.5]
    """
    return BuyAndHold(_uniform(assets, in_cash=False, in_assets=True))


@checked
def ucrp(assets: int) -> ConstantRebalanced:
    """UCRP, uniform constant rebalanced portfolio: trade every day to the same share of each asset, without cash.

    Without costs its wealth after T days is prod_t mean_i(y_{i,t}).

    Args:
        assets: m, the number of assets without cash.

    Raises:
        InputError: there is no asset.

    Example:
        >>> portfolio.ucrp(2).weights.tolist()
        [0.0, 0.5, 0.5]
    """
    return ConstantRebalanced(_uniform(assets, in_cash=False, in_assets=True))


@checked
def uniform_with_cash(assets: int) -> ConstantRebalanced:
    """Trade every day to the same share 1/(m+1) of cash and of each asset.

    Args:
        assets: m, the number of assets without cash.

    Raises:
        InputError: there is no asset.

    Example:
        >>> portfolio.uniform_with_cash(3).weights.tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    return ConstantRebalanced(_uniform(assets, in_cash=True, in_assets=True))


def best_stock(relatives: Float[Array, "days m+1"]) -> BuyAndHold:
    """The asset whose price grew most over these days, in hindsight; cash does not count.

    Args:
        relatives: the relative prices [days, m+1] on which it is evaluated, cash first.

    Example:
        >>> portfolio.best_stock(jnp.array([[1.0, 1.1, 0.9], [1.0, 1.0, 1.1]])).weights.tolist()
        [0.0, 1.0, 0.0]
    """
    best = 1 + jnp.argmax(jnp.sum(jnp.log(relatives[:, 1:]), axis=0))
    return BuyAndHold(jax.nn.one_hot(best, relatives.shape[1], dtype=relatives.dtype))


def bcrp(relatives: Float[Array, "days m+1"]) -> ConstantRebalanced:
    """BCRP, the best constant rebalanced portfolio of cash and assets without costs, in hindsight.

    Args:
        relatives: the relative prices [days, m+1] on which it is evaluated, cash first.

    Example:
        >>> portfolio.bcrp(jnp.array([[1.0, 2.0], [1.0, 0.5]])).weights.round(3).tolist()
        [0.5, 0.5]

    References:
        Cover: Universal Portfolios, Mathematical Finance, 1991.
    """
    return ConstantRebalanced(log_optimal_weights(relatives))


def log_optimal_weights(relatives: Float[Array, "days n"]) -> Float[Array, " n"]:
    """The maximiser over the simplex of the mean logarithmic growth, f(b) = mean_t ln(y_t . b).

    It is computed by Newton's method, with a quadratic subproblem on the simplex. The method stops when
    max_i mean_t(y_{i,t} / (y_t . b)) - 1 is at most 8 times the machine epsilon; this number bounds f(optimum) - f(b),
    because f is concave.

    Args:
        relatives: y, positive numbers [days, n].

    Example:
        >>> print(portfolio.log_optimal_weights(jnp.array([[1.0, 2.0], [1.0, 0.5]])).round(3))
        [0.5 0.5]

    References:
        Cover: An Algorithm for Maximizing Expected Log Investment Return, 1984, for the condition of optimality;
        Nesterov, Nemirovskii: Interior-Point Polynomial Algorithms in Convex Programming, 1994, for the damped step.
    """
    relatives = jnp.asarray(relatives)
    days, n = relatives.shape
    tolerance = 8 * jnp.finfo(relatives.dtype).eps  # type: ignore[no-untyped-call]

    def excess(b: Array) -> Float[Array, "days n"]:
        """y_t / (y_t . b) - 1: the gradients of ln(y_t . b), which lose no digits without their common part."""
        growth = relatives @ b
        return (relatives - growth[:, None]) / growth[:, None]

    def is_unfinished(state: tuple[Array, Array]) -> Bool[Array, ""]:
        b, step = state
        bound: Array = jnp.max(jnp.mean(excess(b), axis=0))
        return (bound > tolerance) & (step < _MAX_STEPS)

    def newton(state: tuple[Array, Int[Array, ""]]) -> tuple[Array, Array]:
        b, step = state
        gradients = excess(b)
        # -f is near b the quadratic -g'd + d'Hd/2 of d = x - b, and H b = 0 because the excess of b itself is 0.
        hessian = gradients.T @ gradients / days
        direction = simplex.minimise_quadratic(hessian, -jnp.mean(gradients, axis=0)) - b
        decrement = jnp.sqrt(days * jnp.maximum(direction @ hessian @ direction, 0))
        return b + direction * jnp.where(decrement < _FULL_STEP_DECREMENT, 1, 1 / (1 + decrement)), step + 1

    start = jnp.full(n, 1 / n, relatives.dtype)
    b: Array = jax.lax.while_loop(is_unfinished, newton, (start, jnp.array(0)))[0]
    return b


def baselines(relatives: Float[Array, "days m+1"]) -> dict[str, Strategy]:
    """All baselines by name; those in hindsight are marked in their names.

    Args:
        relatives: the relative prices [days, m+1] on which they are evaluated, cash first.

    Example:
        >>> list(portfolio.baselines(jnp.array([[1.0, 1.1, 0.9]])))[:4]
        ['cash', 'UBAH', 'UCRP', 'uniform with cash']
    """
    assets = relatives.shape[1] - 1
    return {"cash": cash(assets), "UBAH": ubah(assets), "UCRP": ucrp(assets),
            "uniform with cash": uniform_with_cash(assets), "OLMAR": OLMAR(), "ONS": ONS(),
            "best stock (hindsight)": best_stock(relatives), "BCRP (hindsight)": bcrp(relatives)}


def _uniform(assets: int, *, in_cash: bool, in_assets: bool) -> Float[Array, " m+1"]:
    """Equal weights of cash, of the assets, or of both."""
    check_range("a baseline", "[1, inf)", assets=assets)
    is_held = jnp.where(jnp.arange(assets + 1) == 0, in_cash, in_assets)
    return is_held / jnp.sum(is_held)
