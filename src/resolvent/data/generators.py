"""Synthetic data: the papers', as defined in them or in their authors' programs, and linear regressions of any size."""

import numpy as np
from numpy.typing import NDArray

from resolvent.arguments import checked
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, check_range


@checked
def fedprox_synthetic(*, alpha: float = 1.0, beta: float = 1.0, iid: bool = False, variance: bool = False,
                      mean_per_class: bool = False, parties: int = 30, validation: float = 0.0, test: float = 0.2,
                      seed: int = 0) -> FederatedData:
    """FedProx's Synthetic(alpha, beta): softmax labels of 60 features in 10 classes, power-law sizes.

    y = argmax(softmax(W_k x + b_k)), W_k and b_k ~ N(u_k, 1), u_k ~ N(0, alpha); x ~ N(v_k, Sigma), v_k ~ N(B_k, 1),
    B_k ~ N(0, beta), Sigma = diag(j^-1.2); n_k = floor(lognormal(4, 2)) + 50. As in the authors' generator, alpha and
    beta are standard deviations, and W_k and b_k have the same u_k. With ``iid`` all parties have the same W and b
    ~ N(0, 1), and v_k = 0. Fed+ uses alpha = 1000, beta = 10. Source: FedProx, section 5.1 and C.1; errata 6 and 20.

    Erratum: alpha has no effect on this data. The scalar u_k adds u_k (sum_j x_j + 1) to the logits of all classes
    alike, so that the labels are those of alpha = 0, and Synthetic(1000, 10) is Synthetic(0, 10). With
    ``mean_per_class`` u_k is a vector with one entry for each class, the mean of that class's weights and bias. The
    parties' labels then differ more for larger alpha, as the paper states.

    Args:
        alpha: how much the parties' true models differ; no effect without mean_per_class, and not used with iid.
        beta: how much the parties' inputs differ; not used with iid.
        iid: one true model and one distribution of inputs for all parties.
        variance: take alpha and beta as variances, which the paper's notation N(0, alpha) suggests.
        mean_per_class: draw u_k for each class, so that alpha has an effect; everything else random stays the same.
        parties: number of parties.
        validation: share of each party's samples for validation.
        test: share of each party's samples for testing.
        seed: seed of all random numbers.

    Raises:
        InputError: an argument is out of range.

    Example:
        >>> rv.datasets.fedprox_synthetic(parties=3)
        FederatedData('Synthetic(1, 1)', 3 parties, 366 training samples, inputs [60], 10 classes)
    """
    check_range("fedprox_synthetic", "[0, inf)", alpha=alpha, beta=beta)
    check_range("fedprox_synthetic", "[1, inf)", parties=parties)
    rng, (d, c) = np.random.default_rng(seed), (60, 10)
    sizes = np.floor(rng.lognormal(4, 2, parties)).astype(int) + 50
    to_deviation = np.sqrt if variance else np.asarray
    u, centre = rng.normal(0, to_deviation(alpha), parties), rng.normal(0, to_deviation(beta), parties)
    if mean_per_class:  # of another generator, so that all other draws do not depend on the option
        u = rng.spawn(1)[0].normal(0, to_deviation(alpha), (parties, 1, c))
    v = np.zeros((parties, d)) if iid else rng.normal(centre[:, None], 1, (parties, d))
    deviation = np.arange(1, d + 1) ** -0.6
    common = rng.normal(0, 1, (d + 1, c))
    xs, ys = [], []
    for k, n in enumerate(sizes):
        weights = common if iid else rng.normal(u[k], 1, (d + 1, c))  # the last row is the bias
        x = v[k] + deviation * rng.normal(size=(n, d))
        xs.append(x.astype(np.float32))
        ys.append(np.argmax(x @ weights[:-1] + weights[-1], axis=1))
    name = "Synthetic IID" if iid else f"Synthetic({alpha:g}, {beta:g}{', mean per class' if mean_per_class else ''})"
    return FederatedData.from_arrays(xs, ys, classes=[str(i) for i in range(c)], validation=validation, test=test,
                                     seed=seed, name=name)


@checked
def fedplus_regression(*, parties: int = 10, samples: int = 100, features: int = 1000, validation: float = 0.0,
                       test: float = 0.5, seed: int = 0) -> FederatedData:
    """Fed+'s synthetic regression: linear models around a common one; the last party's model is far from all others.

    y = w_k'x + v, v ~ N(0, 2), x ~ N(mu_k, Sigma), mu_k ~ N(0, 0.5), Sigma_jj = r(j)^-1.1 with r(j) = j mod 50 for
    j = 1, 2, ..., and r(j) = 50 if that is 0 (the paper's Sigma_jj is infinite there). w_k = w + Laplace(scale 0.5)
    noise with w ~ N(0, 5 I); for the last party w ~ N(0, 50 I), drawn independently. N(a, b) has the variance b, and
    mu_k is drawn for each feature. Source: Fed+ (newest notation), section 5.1; errata 5.

    Args:
        parties: number of parties; the last one is the outlier.
        samples: samples per party.
        features: number of inputs.
        validation: share of each party's samples for validation.
        test: share of each party's samples for testing.
        seed: seed of all random numbers.

    Raises:
        InputError: an argument is out of range.

    Example:
        >>> rv.datasets.fedplus_regression(parties=3, samples=4, features=5)
        FederatedData('Fed+ synthetic regression', 3 parties, 6 training samples, inputs [5], regression)
    """
    check_range("fedplus_regression", "[1, inf)", parties=parties, samples=samples, features=features)
    rng = np.random.default_rng(seed)
    r = (np.arange(1, features + 1) - 1) % 50 + 1
    common, distant = rng.normal(0, np.sqrt(5), features), rng.normal(0, np.sqrt(50), features)
    is_common = np.arange(parties)[:, None] < parties - 1
    true = np.where(is_common, common, distant) + rng.laplace(0, 0.5, (parties, features))
    mean = rng.normal(0, np.sqrt(0.5), (parties, 1, features))
    x = mean + r**-0.55 * rng.normal(size=(parties, samples, features))
    y = np.einsum("knf,kf->kn", x, true) + rng.normal(0, np.sqrt(2), (parties, samples))
    data = FederatedData.from_arrays(list(x.astype(np.float32)), list(y.astype(np.float32)), task="regression",
                                     validation=validation, test=test, seed=seed, name="Fed+ synthetic regression")
    return data.with_notes(f"{data.parties[-1]} is an outlier: its true model is drawn independently")


@checked
def splitting_logistic(*, parties: int = 10, samples: int = 1000, features: int = 100, heterogeneity: float = 0.0,
                       validation: float = 0.0, test: float = 0.0, seed: int = 0) -> FederatedData:
    """Binary logistic regression with a chosen heterogeneity of the parties' true models.

    P(y = 1 | a) = 1 / (1 + exp(-a'w_k)), a ~ N(0, I), w_k = w_0 + heterogeneity * v_k, w_0 and v_k ~ N(0, I). The
    paper has one w_0, and does not say how it makes its data more heterogeneous. A note states the resulting
    H = mean over k of |grad f_k(w*)|^2, in the paper's scale: f_k is the sum of the losses plus |w|^2 / (2 m n). The
    model ``logistic`` has the paper's objective, divided by n, for ``l2: 1 / (m n^2)`` and no bias. Source:
    operator-splitting paper, A.1.

    Args:
        parties: number of parties (the paper's m).
        samples: samples per party (the paper's n_i).
        features: number of inputs (the paper's d).
        heterogeneity: standard deviation of the parties' true weights around the common ones.
        validation: share of each party's samples for validation.
        test: share of each party's samples for testing.
        seed: seed of all random numbers.

    Raises:
        InputError: an argument is out of range, or all labels drawn are the same.

    Example:
        >>> rv.datasets.splitting_logistic(parties=3, samples=4, features=5)
        FederatedData('splitting logistic', 3 parties, 12 training samples, inputs [5], 2 classes)
    """
    check_range("splitting_logistic", "[0, inf)", heterogeneity=heterogeneity)
    check_range("splitting_logistic", "[1, inf)", parties=parties, samples=samples, features=features)
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(parties, samples, features))
    true = rng.normal(size=features) + heterogeneity * rng.normal(size=(parties, features))
    y = rng.random((parties, samples)) < 1 / (1 + np.exp(-np.einsum("knf,kf->kn", a, true)))
    if y.all() or not y.any():
        raise InputError(f"all of the {y.size} labels drawn are the same: ask for more samples")
    data = FederatedData.from_arrays(list(a.astype(np.float32)), list(2 * y.astype(int) - 1), classes=["-1", "1"],
                                     validation=validation, test=test, seed=seed, name="splitting logistic")
    return data.with_notes(f"The heterogeneity H is {_gradient_dissimilarity(a, y):.4g} over all samples")


def _gradient_dissimilarity(a: NDArray[np.float64], y: NDArray[np.bool_]) -> float:
    """H, the mean over parties of |grad f_k(w*)|^2, with f_k the sum of the losses plus |w|^2 / (2 m n)."""
    from sklearn.linear_model import LogisticRegression  # here, because importing scikit-learn takes more than 1 s

    m, n, d = a.shape
    optimum = LogisticRegression(C=n, fit_intercept=False, tol=1e-8, max_iter=1000).fit(a.reshape(-1, d), y.ravel())
    w = optimum.coef_[0]
    residual = 1 / (1 + np.exp(-a @ w)) - y
    gradients = np.einsum("knf,kn->kf", a, residual) + w / (m * n)
    return float(np.mean(np.sum(np.square(gradients), axis=1)))


@checked
def sines(*, parties: int = 50, functions: int | None = None, samples: int = 20, noise: float = 0.0,
          validation: float = 0.0, test: float = 0.5, seed: int = 0) -> FederatedData:
    """Regression of sine functions y = A_k sin(x + phi_k), as in FedMix's poster.

    x ~ U[-5, 5], A_k ~ U[0.1, 5], phi_k ~ U[0, pi]. The poster gives no formula; these are the ranges of the task that
    it takes from MAML (Finn, Abbeel and Levine, 2017). It shows 100 workers with two functions, and 50 workers with
    one function each. Source: FedMix poster, "Generalization of Sine Functions".

    Args:
        parties: number of parties.
        functions: number of different functions; party k has function k modulo this number. Default: one per party.
        samples: samples per party.
        noise: standard deviation of the noise on the labels.
        validation: share of each party's samples for validation.
        test: share of each party's samples for testing.
        seed: seed of all random numbers.

    Raises:
        InputError: an argument is out of range.

    Example:
        >>> rv.datasets.sines(parties=3, samples=10)
        FederatedData('sines', 3 parties, 15 training samples, inputs [1], regression)
    """
    check_range("sines", "[1, inf)", parties=parties, samples=samples)
    distinct = parties if functions is None else functions
    if not 1 <= distinct <= parties:
        raise InputError(f"sines(functions={functions}) must lie in 1 to {parties}, the number of parties")
    rng = np.random.default_rng(seed)
    amplitude, phase = rng.uniform(0.1, 5, distinct), rng.uniform(0, np.pi, distinct)
    function_of = np.arange(parties) % distinct
    x = rng.uniform(-5, 5, (parties, samples, 1))
    y = (amplitude[function_of, None] * np.sin(x[..., 0] + phase[function_of, None])
         + noise * rng.normal(size=(parties, samples)))
    return FederatedData.from_arrays(list(x.astype(np.float32)), list(y.astype(np.float32)), task="regression",
                                     validation=validation, test=test, seed=seed, name="sines")


@checked
def synthetic(*, parties: int = 30, samples: int = 20, features: int = 10, heterogeneity: float = 1.0,
              noise: float = 0.1, validation: float = 0.0, test: float = 0.2, seed: int = 0) -> FederatedData:
    """Linear regressions whose true weights differ between parties: y = x'(w + heterogeneity*v_k) + noise.

    For benchmarks and first steps, with any number of parties; x, w and v_k are standard normal.

    Args:
        parties: number of parties.
        samples: samples per party.
        features: number of inputs.
        heterogeneity: standard deviation of the parties' true weights around the common ones.
        noise: standard deviation of the noise on the labels.
        validation: share of each party's samples for validation.
        test: share of each party's samples for testing.
        seed: seed of all random numbers.

    Raises:
        InputError: an argument is out of range.

    Example:
        >>> rv.datasets.synthetic(parties=3, samples=4, features=5)
        FederatedData('synthetic regression', 3 parties, 9 training samples, inputs [5], regression)
    """
    check_range("synthetic", "[1, inf)", parties=parties, samples=samples, features=features)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(parties, samples, features)).astype(np.float32)
    true = rng.normal(size=features) + heterogeneity * rng.normal(size=(parties, features))
    y = np.einsum("knf,kf->kn", x, true) + noise * rng.normal(size=(parties, samples))
    return FederatedData.from_arrays(list(x), list(y.astype(np.float32)), task="regression", validation=validation,
                                     test=test, seed=seed, name="synthetic regression")
