"""The papers' synthetic data: their distributions, against the authors' own files where there are any."""

import numpy as np
import pytest
from scipy import stats

import resolvent as rv
from resolvent.data.federated import SPLITS
from resolvent.data.files import find, leaf_json

D = rv.datasets


def parts(data, split="train"):
    return [data.party(k, split) for k in range(len(data))]


def authors(real_data, name):
    samples = leaf_json(find(str(real_data / f"fedprox_synthetic/synthetic_{name}_mytest.json")))
    return [(np.array(x), np.array(y)) for x, y in samples.values()]


@pytest.mark.parametrize(("name", "settings"), [
    ("iid", {"iid": True}), ("0_0", {"alpha": 0.0, "beta": 0.0}), ("0.5_0.5", {"alpha": 0.5, "beta": 0.5}),
    ("1_1", {"alpha": 1.0, "beta": 1.0})])
def test_fedprox_synthetic_has_the_distributions_of_the_authors_files(real_data, name, settings):
    theirs = authors(real_data, name)
    ours = [party for seed in range(4) for party in parts(D.fedprox_synthetic(**settings, test=0, seed=seed))]
    # sizes: a tenth of (lognormal(4, 2) + 50), rounded up, is what the authors keep for testing
    sizes = [len(y) - int(0.9 * len(y)) for _, y in ours]
    assert stats.ks_2samp([len(y) for _, y in theirs], sizes).pvalue > 0.01
    # inputs: around each party's mean with deviation j^-0.6; party means with deviation 1 around theirs, or all zero
    for some in (theirs, ours):
        centred = np.concatenate([x - x.mean(axis=0) for x, _ in some if len(x) > 5])
        freedom = 1 - len(some) / len(centred)
        ratio = centred.var(axis=0) / freedom / np.arange(1.0, 61) ** -1.2
        assert np.abs(ratio.mean() - 1) < 0.05
    beta = {"iid": 0, "0_0": 0, "0.5_0.5": 0.5, "1_1": 1}[name]
    spread = [np.mean([x.mean(axis=0).std() for x, _ in some if len(x) > 8]) for some in (theirs, ours)]
    np.testing.assert_allclose(spread[1], 0 if name == "iid" else 1, atol=0.1)
    np.testing.assert_allclose(*spread, atol=0.1)
    offsets = [np.std([x.mean() for x, _ in some]) for some in (theirs, ours)]  # 60 entries' mean of B_k + N(0, 1)
    wanted = np.sqrt(beta**2 + (name != "iid") / 60)
    np.testing.assert_allclose(offsets, wanted, atol=0.25 * max(wanted, 0.1))
    # labels: about as many classes in a party's test part
    classes = [np.median([len(set(y[:6])) for _, y in some]) for some in (theirs, ours)]
    assert abs(classes[0] - classes[1]) <= 1


def test_fedprox_labels_are_those_of_a_linear_model_and_only_iid_shares_it():
    for iid in (True, False):
        data = D.fedprox_synthetic(iid=iid, alpha=1.0, beta=0.0, parties=8, test=0, seed=1)
        (x, y), (a, b) = sorted(parts(data), key=lambda p: -len(p[1]))[:2]
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


def test_alpha_is_a_deviation_or_on_request_a_variance():
    """W_k's mean is u_k for all classes alike, which no label shows; beta moves the inputs by B_k."""
    data = D.fedprox_synthetic(alpha=4.0, beta=100.0, parties=200, test=0, seed=0)
    moved = D.fedprox_synthetic(alpha=4.0, beta=100.0, parties=200, variance=True, test=0, seed=0)
    for found, deviation in ((data, 100), (moved, 10)):
        offsets = np.std([x.mean() for x, _ in parts(found)])
        assert abs(offsets / deviation - 1) < 0.15


def test_fedplus_regression_has_the_papers_moments():
    data = D.fedplus_regression(parties=6, samples=1500, features=100, test=0, seed=0)
    fits = []
    for x, y in parts(data):
        centred = x - x.mean(axis=0)
        j = np.arange(1, 101)
        wanted = np.where(j % 50 == 0, 50, j % 50) ** -1.1
        np.testing.assert_allclose(centred.var(axis=0), wanted, rtol=0.2)
        assert abs(x.mean(axis=0).var() - 0.5) < 0.25
        w = np.linalg.lstsq(x, y, rcond=None)[0]
        fits.append(w)
        assert abs(np.sum((x @ w - y) ** 2) / (len(y) - 100) - 2) < 0.4  # the noise has variance 2
    fits = np.array(fits)
    noise = fits[:-1] - fits[:-1].mean(axis=0)
    # Laplace noise of scale 0.5 has variance 0.5; the fits add up to 50^1.1 * 2 / 1500 = 0.1 of their own
    assert 0.4 < noise.var() * 5 / 4 < 0.75
    assert 3 < fits[:-1].mean(axis=0).var() < 8
    assert 33 < fits[-1].var() < 75
    assert "party 5 is an outlier" in data.notes[0]
    paper = D.fedplus_regression()
    assert (len(paper), paper.input_shape) == (10, (1000,))
    assert list(paper.sizes("train") + paper.sizes("test")) == [100] * 10


def test_splitting_logistic_says_the_h_that_newtons_method_finds():
    settings = {"parties": 4, "samples": 150, "features": 6}
    found = []
    for spread in (0.0, 0.5, 3.0):
        data = D.splitting_logistic(**settings, heterogeneity=spread, seed=2)
        a = [data.party(k)[0].astype(float) for k in range(4)]
        b = [2.0 * data.party(k)[1] - 1 for k in range(4)]
        w, weight = np.zeros(6), 1 / (4 * 150)
        for _ in range(50):  # Newton on the paper's F(w)
            gradients = [-(x.T @ (y / (1 + np.exp(y * (x @ w))))) + weight * w for x, y in zip(a, b, strict=True)]
            curvature = [x.T * (1 / (2 + np.exp(x @ w) + np.exp(-x @ w))) @ x for x in a]
            w = w - np.linalg.solve(sum(curvature) + 4 * weight * np.eye(6), sum(gradients))
        h = np.mean([g @ g for g in gradients])
        assert float(data.notes[0].split()[2]) == pytest.approx(h, rel=1e-3)
        found.append(h)
    assert found == sorted(found)
    assert found[-1] > 10 * found[0]


def test_sines_are_sines_of_so_many_functions():
    data = D.sines(parties=10, functions=2, samples=40, test=0, seed=0)
    waves = []
    for x, y in parts(data):
        basis = np.column_stack([np.sin(x[:, 0]), np.cos(x[:, 0])])
        w, rest, *_ = np.linalg.lstsq(basis, y, rcond=None)
        assert rest[0] < 1e-8  # A sin(x + phi) exactly
        waves.append(w)
        assert 0.1 <= np.hypot(*w) <= 5
        assert 0 <= np.arctan2(w[1], w[0]) <= np.pi
        assert np.abs(x).max() <= 5
    np.testing.assert_allclose(waves[::2], [waves[0]] * 5, atol=1e-4)
    assert np.abs(np.array(waves[0]) - waves[1]).max() > 0.1
    assert len({tuple(np.round(y, 3)) for _, y in parts(D.sines(parties=5, test=0))}) == 5


@pytest.mark.parametrize("make", [D.fedprox_synthetic, D.fedplus_regression, D.splitting_logistic, D.sines])
def test_generators_depend_on_the_seed_alone_and_refuse_nonsense(make):
    small = {"parties": 3} | ({"features": 12, "samples": 20} if "samples" in make.__kwdefaults__
                              and make is not D.sines else {})
    a, b, c = make(**small, seed=1), make(**small, seed=1), make(**small, seed=2)
    np.testing.assert_array_equal(a.x, b.x)
    assert a.x.shape != c.x.shape or not np.array_equal(a.x, c.x)
    assert a.x.dtype == np.float32
    assert all(np.isfinite(a.party(0, s)[0]).all() for s in SPLITS)
    with pytest.raises(rv.InputError, match="must be at least 1"):
        make(**{**small, "parties": 0})
    with pytest.raises(rv.InputError, match="seed=-1"):
        make(**small, seed=-1)
