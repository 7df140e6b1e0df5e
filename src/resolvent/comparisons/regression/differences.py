"""Which coefficients differ where: Fed+ with the L1 norm, solved exactly."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from resolvent.comparisons.regression.fit import Fit, rows_of
from resolvent.errors import InputError
from resolvent.math import newton
from resolvent.math.newton import NewtonState, SecondOrder
from resolvent.problem.problem import shares_by_size
from resolvent.regression.objective import RegressionProblem

if TYPE_CHECKING:
    import pandas as pd

_WEIGHTS = np.geomspace(1, 0.02, 15)  # of the smallest weight at which all sites are the same
_ROUNDS = 60
_ZERO = 1e-8  # a difference below this many of the scale's units is zero


@dataclass(frozen=True)
class Differences:
    """Sparse differences between sites.

    Attributes:
        common: [P] the common vector.
        differences: a row for each site and a column for each parameter: what is added to the common vector there; 0
            where the site does not differ.
        scaled: the same in units of the common fit's standard error times sqrt(n): without the columns' units.
        weight: the weight of the L1 norm, chosen by BIC.
        path: a row for each weight that was tried: weight, number of differences, BIC.
    """

    common: NDArray[np.float64]
    differences: "pd.DataFrame"
    scaled: "pd.DataFrame"
    weight: float
    path: "pd.DataFrame"


def sparse_differences(fit: Fit) -> Differences:
    r"""Find which coefficients differ at which site.

    .. math:: \min_{c, z_1, \dots, z_N} \sum_k \lambda_k f_k(c + z_k) + \sigma \sum_k \sum_j s_j |z_{kj}|

    It is the problem of Fed+ with personal models c + z_k and the L1 norm, with scales s_j from the information of the
    common fit, so that units do not matter. It is solved exactly for 15 weights sigma; BIC chooses one, with the
    number of nonzero z_kj as degrees of freedom. Source: Fed+, section 3; Schwarz, 1978.
    """
    import pandas as pd

    rows, count = rows_of(fit), fit.count
    if fit.model.weights == "sampling":
        raise InputError("sampling weights have no likelihood, by which BIC chooses where coefficients differ: compare "
                         "the sites' own estimates, heterogeneity().table")
    parameters, sites = len(fit.names), len(fit.model.sites)
    with jax.enable_x64(True):
        problem = rows.problem()
        scale = np.sqrt(np.maximum(np.diag(np.asarray(fit.sums.information)) / count, 1e-300))
        theta = jnp.concatenate([jnp.asarray(np.nan_to_num(fit.estimates)), jnp.zeros(sites * parameters)])
        slopes = np.asarray(_joint(problem, theta).gradient)[parameters:].reshape(sites, parameters)
        largest = float(np.max(np.abs(slopes) / scale))
        best, path = (np.inf, theta, 0.0), []
        for weight in largest * _WEIGHTS:
            l1 = np.concatenate([np.zeros(parameters), np.tile(weight * scale, sites)])
            last = _solve(problem, theta, jnp.asarray(l1))
            theta = last.point
            value = float(last.value) - float(np.sum(l1 * np.abs(np.asarray(theta))))
            number = int(np.sum(_nonzero(theta, parameters, scale)))
            bic = 2 * count * value / (fit.dispersion or 1.0) + np.log(fit.observations) * (number + parameters)
            path.append((weight, number, bic))
            if bic < best[0]:
                best = (bic, theta, float(weight))
    z = np.asarray(best[1])[parameters:].reshape(sites, parameters)
    z = np.where(_nonzero(best[1], parameters, scale), z, 0.0)
    frame = pd.DataFrame(z, index=pd.Index(fit.model.sites, name="site"), columns=list(fit.names))
    return Differences(np.asarray(best[1])[:parameters], frame, frame * scale, best[2],
                       pd.DataFrame(path, columns=["weight", "differences", "BIC"]))


def _nonzero(theta: Array, parameters: int, scale: NDArray[np.float64]) -> NDArray[np.bool_]:
    z = np.asarray(theta)[parameters:].reshape(-1, parameters)
    return np.asarray(np.abs(z) * scale > _ZERO)


@eqx.filter_jit
def _solve(problem: RegressionProblem, theta: Float[Array, " Q"], l1: Float[Array, " Q"]) -> NewtonState:
    """Proximal Newton steps until convergence."""
    tolerance = newton.precision(theta)**1.25
    first = newton.advance(newton.start(theta), _joint(problem, theta), tolerance, l1)
    last: NewtonState = jax.lax.while_loop(
        lambda s: ~s.has_converged & (s.evaluations < _ROUNDS),
        lambda s: newton.advance(s, _joint(problem, s.candidate), tolerance, l1), first)
    return last


@jax.jit
def _joint(problem: RegressionProblem, theta: Float[Array, " Q"]) -> SecondOrder:
    """sum_k lambda_k f_k(c + z_k) as a function of (c, z_1, ..., z_N)."""
    sites = problem.sizes.shape[0]
    parameters = theta.size // (sites + 1)
    common, difference = theta[:parameters], theta[parameters:].reshape(sites, parameters)
    shares = shares_by_size(problem.sizes).astype(theta.dtype)

    def of_party(k: Array) -> SecondOrder:
        of_site: SecondOrder = problem.oracle(k).second_order(common + difference[k])
        return SecondOrder(*(shares[k] * part for part in of_site))

    terms: SecondOrder = jax.lax.map(of_party, jnp.arange(sites))
    across = terms.hessian.transpose(1, 0, 2).reshape(parameters, -1)  # of c and each z_k
    hessian = jnp.block([[terms.hessian.sum(0), across], [across.T, _block_diagonal(terms.hessian)]])
    gradient = jnp.concatenate([terms.gradient.sum(0), terms.gradient.ravel()])
    return SecondOrder(terms.value.sum(), gradient, hessian)


def _block_diagonal(blocks: Float[Array, "N P P"]) -> Float[Array, "NP NP"]:
    n, p, _ = blocks.shape
    full = jnp.zeros((n, p, n, p), blocks.dtype).at[jnp.arange(n), :, jnp.arange(n), :].set(blocks)
    return full.reshape(n * p, n * p)
