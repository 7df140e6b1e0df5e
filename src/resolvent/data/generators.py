"""The papers' synthetic data, number for number as they, or their authors' programs, say."""

import numpy as np
from numpy.typing import NDArray

from resolvent.data.federated import FederatedData
from resolvent.errors import InputError

__all__ = ["fedplus_regression", "fedprox_synthetic", "sines", "splitting_logistic"]


def fedprox_synthetic(*, alpha: float = 1.0, beta: float = 1.0, iid: bool = False, variance: bool = False,
                      parties: int = 30, validation: float = 0.0, test: float = 0.2, seed: int = 0) -> FederatedData:
    """FedProx's Synthetic(alpha, beta): softmax labels of 60 features in 10 classes, sizes of a power law.

    y = argmax(softmax(W_k x + b_k)), W_k and b_k ~ N(u_k, 1), u_k ~ N(0, alpha); x ~ N(v_k, Sigma), v_k ~ N(B_k, 1),
    B_k ~ N(0, beta), Sigma = diag(j^-1.2); n_k = floor(lognormal(4, 2)) + 50. As in the authors' generator alpha and
    beta are standard deviations and one u_k serves W_k and b_k. With ``iid`` one W and b ~ N(0, 1) serve all parties
    and v_k = 0. Fed+ takes alpha = 1000, beta = 10. Source: FedProx, section 5.1 and C.1; errata 6.

    Args:
        alpha: how much the parties' true models differ; not used when iid.
        beta: how much the parties' inputs differ; not used when iid.
        iid: one true model and one distribution of inputs for all parties.
        variance: read N(0, alpha) and N(0, beta) with the variance in the second place, as the paper's text writes it.
        parties: how many parties.
        validation: share of each party's samples kept for validation.
        test: share of each party's samples kept for testing.
        seed: of everything random.
    """
    if not (alpha >= 0 and beta >= 0):
        raise InputError(f"alpha={alpha} and beta={beta} must not be negative")
    rng, (d, c) = np.random.default_rng(_at_least_zero(seed)), (60, 10)
    sizes = np.floor(rng.lognormal(4, 2, _positive(parties))).astype(int) + 50
    root = np.sqrt if variance else np.asarray
    u, centre = rng.normal(0, root(alpha), parties), rng.normal(0, root(beta), parties)
    v = np.zeros((parties, d)) if iid else rng.normal(centre[:, None], 1, (parties, d))
    deviation = np.arange(1, d + 1) ** -0.6
    same = rng.normal(0, 1, (d + 1, c))
    xs, ys = [], []
    for k, n in enumerate(sizes):
        own = same if iid else rng.normal(u[k], 1, (d + 1, c))
        x = v[k] + deviation * rng.normal(size=(n, d))
        xs.append(x.astype(np.float32))
        ys.append(np.argmax(x @ own[:-1] + own[-1], axis=1))
    name = "Synthetic IID" if iid else f"Synthetic({alpha:g}, {beta:g})"
    return FederatedData.from_arrays(xs, ys, classes=[str(i) for i in range(c)], validation=validation, test=test,
                                     seed=seed, name=name)


def fedplus_regression(*, parties: int = 10, samples: int = 100, features: int = 1000, validation: float = 0.0,
                       test: float = 0.5, seed: int = 0) -> FederatedData:
    """Fed+'s synthetic regression: linear models around a common one, and a last party far away from all.

    y = w_k'x + v, v ~ N(0, 2), x ~ N(mu_k, Sigma), mu_k ~ N(0, 0.5), Sigma_jj = r(j)^-1.1 with r(j) = j mod 50 for
    j = 1, 2, ..., and 50 where that is 0 (the paper's is infinite there). w_k = w + Laplace(scale 0.5) noise with w ~
    N(0, 5 I); the last party's w is its own, ~ N(0, 50 I). N(a, b) has the variance in the second place, and mu_k is
    drawn for each feature. Source: Fed+ (newest notation), section 5.1; errata 5.

    Args:
        parties: how many parties, of which the last is the outlier.
        samples: samples per party.
        features: number of inputs.
        validation: share of each party's samples kept for validation.
        test: share of each party's samples kept for testing.
        seed: of everything random.
    """
    rng = np.random.default_rng(_at_least_zero(seed))
    shape = (_positive(parties), _positive(samples), _positive(features))
    place = (np.arange(1, features + 1) - 1) % 50 + 1
    common, far = rng.normal(0, np.sqrt(5), features), rng.normal(0, np.sqrt(50), features)
    true = np.where(np.arange(parties)[:, None] < parties - 1, common, far) + rng.laplace(0, 0.5, (parties, features))
    mean = rng.normal(0, np.sqrt(0.5), (parties, 1, features))
    x = mean + place**-0.55 * rng.normal(size=shape)
    y = np.einsum("knf,kf->kn", x, true) + rng.normal(0, np.sqrt(2), (parties, samples))
    data = FederatedData.from_arrays(list(x.astype(np.float32)), list(y.astype(np.float32)), task="regression",
                                     validation=validation, test=test, seed=seed, name="Fed+ synthetic regression")
    return data.noting(f"{data.parties[-1]} is an outlier: its true model is its own")


def splitting_logistic(*, parties: int = 10, samples: int = 1000, features: int = 100, heterogeneity: float = 0.0,
                       validation: float = 0.0, test: float = 0.0, seed: int = 0) -> FederatedData:
    """Binary logistic regression whose parties' true models may differ by as much as you like.

    P(y = 1 | a) = 1 / (1 + exp(-a'w_k)), a ~ N(0, I), w_k = w_0 + heterogeneity * v_k, w_0 and v_k ~ N(0, I). The
    paper has one w_0, and does not say how it makes its data more heterogeneous; here the note gives the resulting
    H = mean over k of |grad f_k(w*)|^2, in the paper's scale: f_k is the sum of the losses plus |w|^2 / (2 m n), so
    ``logistic`` has its objective, divided by n, for ``l2: 1 / (m n^2)`` and no bias. Source: operator-splitting paper,
    A.1.

    Args:
        parties: how many parties (the paper's m).
        samples: samples per party (its n_i).
        features: number of inputs (its d).
        heterogeneity: standard deviation of the parties' true weights around the common ones.
        validation: share of each party's samples kept for validation.
        test: share of each party's samples kept for testing.
        seed: of everything random.
    """
    if not heterogeneity >= 0:
        raise InputError(f"heterogeneity={heterogeneity} must not be negative")
    rng = np.random.default_rng(_at_least_zero(seed))
    a = rng.normal(size=(_positive(parties), _positive(samples), _positive(features)))
    true = rng.normal(size=features) + heterogeneity * rng.normal(size=(parties, features))
    y = rng.random((parties, samples)) < 1 / (1 + np.exp(-np.einsum("knf,kf->kn", a, true)))
    if y.all() or not y.any():
        raise InputError(f"all of the {y.size} labels drawn are the same: ask for more samples")
    data = FederatedData.from_arrays(list(a.astype(np.float32)), list(2 * y.astype(int) - 1), classes=["-1", "1"],
                                     validation=validation, test=test, seed=seed, name="splitting logistic")
    return data.noting(f"H = {_logistic_h(a, y):.4g} over all samples")


def _logistic_h(a: NDArray[np.float64], y: NDArray[np.bool_]) -> float:
    """The mean over parties of |grad f_k(w*)|^2, f_k the sum of the losses plus |w|^2 / (2 m n)."""
    from sklearn.linear_model import LogisticRegression  # takes seconds

    m, n, d = a.shape
    fitted = LogisticRegression(C=n, fit_intercept=False, tol=1e-8, max_iter=1000).fit(a.reshape(-1, d), y.ravel())
    w = fitted.coef_[0]
    residual = 1 / (1 + np.exp(-a @ w)) - y
    gradients = np.einsum("knf,kn->kf", a, residual) + w / (m * n)
    return float(np.mean(np.sum(np.square(gradients), axis=1)))


def sines(*, parties: int = 50, functions: int | None = None, samples: int = 20, noise: float = 0.0,
          validation: float = 0.0, test: float = 0.5, seed: int = 0) -> FederatedData:
    """Sine functions y = A_k sin(x + phi_k) to regress, as FedMix's poster does.

    x ~ U[-5, 5], A_k ~ U[0.1, 5], phi_k ~ U[0, pi]. The poster gives no formula; these are the ranges of the task that
    it takes from MAML (Finn, Abbeel and Levine, 2017). It shows 100 workers made of two functions and 50 workers with
    a function each: ``functions`` says how many there are, given to the parties in turn. Source: FedMix poster,
    "Generalization of Sine Functions".

    Args:
        parties: how many parties.
        functions: how many different functions; left out, one per party.
        samples: samples per party.
        noise: standard deviation of the noise on the labels.
        validation: share of each party's samples kept for validation.
        test: share of each party's samples kept for testing.
        seed: of everything random.
    """
    rng = np.random.default_rng(_at_least_zero(seed))
    distinct = _positive(parties) if functions is None else functions
    if not 1 <= distinct <= parties:
        raise InputError(f"functions={functions} must lie in 1 to {parties}, the number of parties")
    amplitude, phase = rng.uniform(0.1, 5, distinct), rng.uniform(0, np.pi, distinct)
    mine = np.arange(parties) % distinct
    x = rng.uniform(-5, 5, (parties, _positive(samples), 1))
    y = amplitude[mine, None] * np.sin(x[..., 0] + phase[mine, None]) + noise * rng.normal(size=(parties, samples))
    return FederatedData.from_arrays(list(x.astype(np.float32)), list(y.astype(np.float32)), task="regression",
                                     validation=validation, test=test, seed=seed, name="sines")


def _positive(value: int) -> int:
    if value < 1:
        raise InputError(f"{value} must be at least 1: parties, samples and features are counted")
    return value


def _at_least_zero(seed: int) -> int:
    if seed < 0:
        raise InputError(f"seed={seed} must not be negative: use 0 or more")
    return seed
