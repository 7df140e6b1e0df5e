"""Scores of models on parties' samples: in NumPy, for each party, and for all parties in one call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.data.federated import SPLITS
from resolvent.problem.subset import Gatherer

SIZES = (70, 1, 3, 129, 2)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def data():
    rng = np.random.default_rng(3)
    x = [rng.normal(size=(n, 6)) for n in SIZES]
    return rv.FederatedData.from_arrays(x, [rng.integers(0, 4, n) for n in SIZES], validation=0.1, test=0.3,
                                        classes=list("0123"))


def expected(data, w, index):
    """[M, splits] mean cross-entropy and accuracy."""
    weight, bias = (np.asarray(w[name]) for name in ("weight", "bias"))
    actual = np.full((2, len(index), len(SPLITS)), np.nan)
    for i, k in enumerate(index):
        for j, name in enumerate(SPLITS):
            split = data.splits[name]
            rows = slice(split.offset[k], split.offset[k] + split.length[k])
            if split.length[k]:
                logits = data.x[rows] @ weight.T + bias
                of_own = logits[np.arange(len(logits)), data.y[rows]]
                actual[0, i, j] = np.mean(np.log(np.exp(logits).sum(axis=1)) - of_own)
                actual[1, i, j] = np.mean(logits.argmax(axis=1) == data.y[rows])
    return actual


def point():
    keys = jax.random.split(jax.random.key(1))
    return {"weight": jax.random.normal(keys[0], (4, 6)), "bias": jax.random.normal(keys[1], (4,))}


@nightly.parametrize("index", [[0, 1, 2, 3, 4], [3], [1], [4, 1], [2, 2, 0]])
def test_a_shared_model_is_evaluated_on_every_split_of_each_party(data, index):
    problem, w = rv.problems.LearningProblem(rv.models.logistic(6, 4, l2=0.1), data), point()
    reference = expected(data, w, index)
    shared = problem.evaluate_shared(w, np.array(index, np.int32))
    np.testing.assert_allclose(tuple(shared.values()), reference, rtol=1e-12)
    of_party = jax.jit(lambda k, split: problem.evaluate_party(w, k, split))
    alone = [[of_party(jnp.array(k), jnp.array(split)) for split in range(len(SPLITS))] for k in index]
    np.testing.assert_allclose(alone, reference.transpose(1, 2, 0), rtol=1e-12)


def test_equal_accuracies_are_equal_bits_by_either_evaluation(data):
    """In float32, where 1/3 differs from its float64 value. Comparisons of parties need equal bits."""
    with jax.enable_x64(False):
        problem, w = rv.problems.LearningProblem(rv.models.logistic(6, 4), data), jax.tree.map(np.float32, point())
        together = problem.evaluate_shared(w, np.arange(5, dtype=np.int32))["accuracy"]
        of_party = jax.jit(lambda k, split: problem.evaluate_party(w, k, split)[1])
        alone = [[of_party(jnp.array(k), jnp.array(j)) for j in range(len(SPLITS))] for k in range(5)]
    assert together.dtype == np.float32
    np.testing.assert_array_equal(together, np.array(alone))


def test_gathered_parties_are_evaluated_under_their_numbers(data):
    numbers, w = np.array([1, 3], np.int32), point()
    gathered = Gatherer(rv.models.logistic(6, 4), data)(numbers, 3)
    for index in (numbers, numbers[::-1]):
        shared = gathered.evaluate_shared(w, index)
        np.testing.assert_allclose(tuple(shared.values()), expected(data, w, index), rtol=1e-12)


def test_parties_without_samples_in_any_split_have_no_means():
    x = np.zeros((3, 2))
    data = rv.FederatedData.from_arrays([x, x], [np.zeros(3, int), np.ones(3, int)], validation=0, test=0)
    problem = rv.problems.LearningProblem(rv.models.logistic(2, 2), data)
    loss, score = problem.evaluate_shared(problem.init(jax.random.key(0)), np.array([0, 1], np.int32)).values()
    np.testing.assert_allclose(loss[:, 0], np.log(2), rtol=1e-12)
    assert score.shape == (2, 3)
    assert np.isnan(loss[:, 1:]).all()
    assert np.isnan(score[:, 1:]).all()


@pytest.mark.when_changed
def test_a_problem_of_another_kind_is_asked_party_by_party():
    rng = np.random.default_rng(0)
    problem = rv.problems.QuadraticProblem.least_squares(rng.normal(size=(3, 5, 2)), rng.normal(size=(3, 5)))
    w = jnp.array([0.3, -1.0])
    loss, score = problem.evaluate_shared(w, np.array([2, 0], np.int32)).values()
    np.testing.assert_allclose(loss, [[problem.oracle(jnp.array(k)).value(w)] for k in (2, 0)], rtol=1e-12)
    np.testing.assert_array_equal(loss, score)
