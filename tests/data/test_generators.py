"""The papers' synthetic data: their distributions, compared with the authors' files if there are any."""

import numpy as np
import pytest
from scipy import stats

from resolvent import datasets
from resolvent.data.federated import SPLITS
from resolvent.data.files.data_files import find
from resolvent.data.images_text.leaf_files import read_leaf
from resolvent.errors import InputError


def parties_of(data, split="train"):
    return [data.party(k, split) for k in range(len(data))]


def read_authors_file(real_data, name):
    samples = read_leaf(find(str(real_data / f"fedprox_synthetic/synthetic_{name}_mytest.json")))
    return [(np.array(x), np.array(y)) for x, y in samples.values()]


@pytest.mark.when_changed
@pytest.mark.parametrize(("name", "settings"), [
    ("iid", {"iid": True}), ("0_0", {"alpha": 0.0, "beta": 0.0}), ("0.5_0.5", {"alpha": 0.5, "beta": 0.5}),
    ("1_1", {"alpha": 1.0, "beta": 1.0})])
def test_fedprox_synthetic_has_the_distributions_of_the_authors_files(real_data, name, settings):
    theirs = read_authors_file(real_data, name)
    ours = [party for seed in range(4)
            for party in parties_of(datasets.fedprox_synthetic(**settings, test=0, seed=seed))]
    # sizes: the authors hold out a tenth of (lognormal(4, 2) + 50), rounded up
    sizes = [len(y) - int(0.9 * len(y)) for _, y in ours]
    assert stats.ks_2samp([len(y) for _, y in theirs], sizes).pvalue > 0.01
    # inputs: around each party's mean with deviation j^-0.6; party means with deviation 1 around theirs, or all zero
    for parties in (theirs, ours):
        centred = np.concatenate([x - x.mean(axis=0) for x, _ in parties if len(x) > 5])
        freedom = 1 - len(parties) / len(centred)
        ratio = centred.var(axis=0) / freedom / np.arange(1.0, 61) ** -1.2
        assert np.abs(ratio.mean() - 1) < 0.05
    beta = {"iid": 0, "0_0": 0, "0.5_0.5": 0.5, "1_1": 1}[name]
    spread = [np.mean([x.mean(axis=0).std() for x, _ in parties if len(x) > 8]) for parties in (theirs, ours)]
    np.testing.assert_allclose(spread[1], 0 if name == "iid" else 1, atol=0.1)
    np.testing.assert_allclose(*spread, atol=0.1)
    offsets = [np.std([x.mean() for x, _ in parties]) for parties in (theirs, ours)]  # mean of 60 draws from N(B_k, 1)
    expected = np.sqrt(beta**2 + (name != "iid") / 60)
    np.testing.assert_allclose(offsets, expected, atol=0.25 * max(expected, 0.1))
    # labels: the number of classes in a party's test part
    classes = [np.median([len(set(y[:6])) for _, y in parties]) for parties in (theirs, ours)]
    assert abs(classes[0] - classes[1]) <= 1


def test_alpha_has_an_effect_only_with_a_mean_per_class():
    """The authors' scalar u_k moves the logits of all classes alike: every sample and label is that of alpha = 0."""
    def labels_of(alpha, **settings):
        parties = parties_of(datasets.fedprox_synthetic(alpha=alpha, beta=10.0, parties=8, test=0, seed=3, **settings))
        np.testing.assert_array_equal(np.concatenate([x for x, _ in parties]), inputs)
        return [y for _, y in parties]

    reference = parties_of(datasets.fedprox_synthetic(alpha=0.0, beta=10.0, parties=8, test=0, seed=3))
    inputs = np.concatenate([x for x, _ in reference])
    for alpha in (1.0, 1000.0):
        for y, (_, expected) in zip(labels_of(alpha), reference, strict=True):
            np.testing.assert_array_equal(y, expected)
    for y, (_, expected) in zip(labels_of(0.0, mean_per_class=True), reference, strict=True):
        np.testing.assert_array_equal(y, expected)
    changed = [np.mean(y != expected) for y, (_, expected) in
               zip(labels_of(1000.0, mean_per_class=True), reference, strict=True)]
    assert np.mean(changed) > 0.5
    # alpha much larger than the entries of W_k - u_k: the class with the largest or the smallest mean, by sum(x) + 1
    assert all(len(set(y)) <= 3 for y in labels_of(1e6, mean_per_class=True))


def test_fedprox_labels_are_those_of_a_linear_model_which_parties_share_only_with_iid():
    for iid in (True, False):
        data = datasets.fedprox_synthetic(iid=iid, alpha=1.0, beta=0.0, parties=8, test=0, seed=1)
        (x, y), (a, b) = sorted(parties_of(data), key=lambda p: -len(p[1]))[:2]
        fit = _softmax(x, y)
        assert (np.argmax(np.column_stack([x, np.ones(len(x))]) @ fit, axis=1) == y).mean() > 0.97
        other = (np.argmax(np.column_stack([a, np.ones(len(a))]) @ fit, axis=1) == b).mean()
        assert bool(other > 0.6) is iid, other


def _softmax(x, y):
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=1e4, max_iter=3000).fit(x, y)
    weights = np.full((x.shape[1] + 1, 10), -np.inf)
    weights[:, fitted.classes_] = np.vstack([fitted.coef_.T, fitted.intercept_])
    weights[:-1][~np.isfinite(weights[:-1])] = 0
    return weights


def test_alpha_and_beta_are_deviations_or_with_variance_variances():
    # Only beta is tested: W_k's mean u_k is the same for all classes, so that it changes no label.
    data = datasets.fedprox_synthetic(alpha=4.0, beta=100.0, parties=200, test=0, seed=0)
    variances = datasets.fedprox_synthetic(alpha=4.0, beta=100.0, parties=200, variance=True, test=0, seed=0)
    for drawn, deviation in ((data, 100), (variances, 10)):
        offsets = np.std([x.mean() for x, _ in parties_of(drawn)])
        assert abs(offsets / deviation - 1) < 0.15


def test_fedplus_regression_has_the_papers_moments():
    data = datasets.fedplus_regression(parties=6, samples=1500, features=100, test=0, seed=0)
    fits = []
    for x, y in parties_of(data):
        centred = x - x.mean(axis=0)
        j = np.arange(1, 101)
        expected = np.where(j % 50 == 0, 50, j % 50) ** -1.1
        np.testing.assert_allclose(centred.var(axis=0), expected, rtol=0.2)
        assert abs(x.mean(axis=0).var() - 0.5) < 0.25
        x = x.astype(float)
        w = np.linalg.solve(x.T @ x, x.T @ y)
        fits.append(w)
        assert abs(np.sum((x @ w - y) ** 2) / (len(y) - 100) - 2) < 0.4  # the noise has variance 2
    fits = np.array(fits)
    noise = fits[:-1] - fits[:-1].mean(axis=0)
    # Laplace noise of scale 0.5 has variance 0.5; the fits' errors add at most 50^1.1 * 2 / 1500 = 0.1
    assert 0.4 < noise.var() * 5 / 4 < 0.75
    assert 3 < fits[:-1].mean(axis=0).var() < 8
    assert 33 < fits[-1].var() < 75
    assert "party 5 is an outlier" in data.notes[0]
    paper = datasets.fedplus_regression()
    assert (len(paper), paper.input_shape) == (10, (1000,))
    assert list(paper.sizes("train") + paper.sizes("test")) == [100] * 10


def test_splitting_logistic_notes_the_h_of_newtons_method():
    settings = {"parties": 4, "samples": 150, "features": 6}
    dissimilarities = []
    for heterogeneity in (0.0, 0.5, 3.0):
        data = datasets.splitting_logistic(**settings, heterogeneity=heterogeneity, seed=2)
        a = [data.party(k)[0].astype(float) for k in range(4)]
        b = [2.0 * data.party(k)[1] - 1 for k in range(4)]
        w, weight = np.zeros(6), 1 / (4 * 150)
        for _ in range(50):  # Newton on the paper's F(w)
            gradients = [-(x.T @ (y / (1 + np.exp(y * (x @ w))))) + weight * w for x, y in zip(a, b, strict=True)]
            curvature = [x.T * (1 / (2 + np.exp(x @ w) + np.exp(-x @ w))) @ x for x in a]
            w = w - np.linalg.solve(sum(curvature) + 4 * weight * np.eye(6), sum(gradients))
        h = np.mean([g @ g for g in gradients])
        assert float(data.notes[0].split()[4]) == pytest.approx(h, rel=1e-3)
        dissimilarities.append(h)
    assert dissimilarities == sorted(dissimilarities)
    assert dissimilarities[-1] > 10 * dissimilarities[0]


def test_sines_are_the_stated_number_of_sine_functions():
    data = datasets.sines(parties=10, functions=2, samples=40, test=0, seed=0)
    waves = []
    for x, y in parties_of(data):
        basis = np.column_stack([np.sin(x[:, 0]), np.cos(x[:, 0])])
        w, residual, *_ = np.linalg.lstsq(basis, y, rcond=None)
        assert residual[0] < 1e-8  # A sin(x + phi) exactly
        waves.append(w)
        assert 0.1 <= np.hypot(*w) <= 5
        assert 0 <= np.arctan2(w[1], w[0]) <= np.pi
        assert np.abs(x).max() <= 5
    np.testing.assert_allclose(waves[::2], [waves[0]] * 5, atol=1e-4)
    assert np.abs(np.array(waves[0]) - waves[1]).max() > 0.1
    assert len({tuple(np.round(y, 3)) for _, y in parties_of(datasets.sines(parties=5, test=0))}) == 5


@pytest.mark.parametrize(("make", "small"), [
    (datasets.fedprox_synthetic, {"parties": 3}), (datasets.sines, {"parties": 3}),
    (datasets.fedplus_regression, {"parties": 3, "features": 12, "samples": 20}),
    (datasets.splitting_logistic, {"parties": 3, "features": 12, "samples": 20})])
def test_generators_depend_on_the_seed_alone_and_refuse_wrong_arguments(make, small):
    a, b, c = make(**small, seed=1), make(**small, seed=1), make(**small, seed=2)
    np.testing.assert_array_equal(a.x, b.x)
    assert a.x.shape != c.x.shape or not np.array_equal(a.x, c.x)
    assert a.x.dtype == np.float32
    assert all(np.isfinite(a.party(0, s)[0]).all() for s in SPLITS)
    with pytest.raises(InputError, match=r"\(parties=0\) must lie in"):
        make(**{**small, "parties": 0})
    with pytest.raises(InputError, match=r"\(seed=-1\)"):
        make(**small, seed=-1)
