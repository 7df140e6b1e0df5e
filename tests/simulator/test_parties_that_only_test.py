"""A party with test samples only: a central test set, or a new party, that is followed over the rounds of a run."""

import numpy as np
import pytest

import resolvent as rv

RNG = np.random.default_rng(5)
X = [RNG.normal(size=(n, 3)) for n in (20, 30, 25, 40)]
Y = [(x @ [1.0, -2.0, 0.5] + 0.3 * RNG.normal(size=len(x)) > 0).astype(int) for x in X]
TESTED = [4, 6, 5, 40]
MODEL, SOLVER = rv.models.logistic(3, 2), rv.SGD(0.2, batch_size=5, epochs=1)
DATA = rv.FederatedData.from_arrays(X, Y, validation=0.2, test=TESTED, parties=["a", "b", "c", "central"])
WITHOUT = rv.FederatedData.from_arrays(X[:3], Y[:3], validation=0.2, test=TESTED[:3])


@pytest.mark.parametrize(("algorithm", "participation"), [
    (rv.fedavg(SOLVER), rv.participation.Full()),
    (rv.scaffold(SOLVER), rv.participation.Uniform(2, among=3)),
])
def test_the_central_test_set_is_scored_in_every_round_and_changes_nothing(algorithm, participation):
    """The run is that without the party, and its scores are those of the shared model on its samples, by NumPy."""
    models = []
    result, other = (rv.simulate(algorithm, MODEL, data, rounds=4, evaluate_every=1, participation=participation,
                                 progress=False, on_evaluation=lambda event: models.append(event.server_model))
                     for data in (DATA, WITHOUT))
    np.testing.assert_allclose(result.server_model["weight"], other.server_model["weight"], atol=1e-6)
    np.testing.assert_allclose(result.scores("test")[[0, 1, 2]], other.scores("test"), atol=1e-6)
    scores = result.scores("test", "global_accuracy")[3]
    assert scores.index.tolist() == [0, 1, 2, 3, 4]
    for model, score in zip(models[:4], scores[1:], strict=True):
        outputs = X[3] @ np.asarray(model["weight"]).T + np.asarray(model["bias"])
        assert score == pytest.approx(np.mean((outputs[:, 0] > 0) == Y[3]))
    assert 3 not in result.scores("validation").columns
    line = result.plot(party=3).axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), result.scores("test")[3], atol=1e-6)
    with pytest.raises(rv.InputError, match=r"plot\(party=9\): this party was not evaluated"):
        result.plot(party=9)
