"""Validation scores of methods that choose by validation samples: each half scores the model that the other chooses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import nightly
import resolvent as rv
from resolvent.simulator.record.cross_fit import cross_fit, cross_fitted_scores

SOLVER = rv.SGD(0.5, batch_size=8, epochs=2)
SIZES = (120, 80, 61, 40, 9, 5, 2, 1)


def parties(sizes, seed, slope=1.0):
    """Two classes that the inputs predict, with a slope of the log-odds."""
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=(n, 3)).astype(np.float32) for n in sizes]
    y = [(rng.random(len(a)) < 1 / (1 + np.exp(-slope * (a @ [1, -1, 0.5] + rng.normal())))).astype(int) for a in x]
    return rv.FederatedData.from_arrays(x, y, validation=0.3, test=0.2, classes=["0", "1"])


def run(algorithm, data, **options):
    options = {"rounds": 3, "evaluate_every": 3, "progress": False} | options
    return rv.simulate(algorithm, rv.models.logistic(3, 2), data, **options)


def half_by_half(x, y, local, joint, points=11):
    """(probabilities of class 1, losses) of each sample by the mixture that the other half chooses, in NumPy."""
    probabilities = []
    for s in np.linspace(0, 1, points):
        z = sum(weight * (x @ np.asarray(model["weight"], float).T + np.asarray(model["bias"], float))
                for weight, model in ((1 - s, local), (s, joint)))[:, 0]
        probabilities.append(1 / (1 + np.exp(-z)))
    probabilities = np.array(probabilities)  # [mixtures, n]
    losses = -np.log(np.where(y == 1, probabilities, 1 - probabilities))
    middle = (len(y) + 1) // 2
    chosen = np.zeros(len(y), int)
    for half, other in ((slice(None, middle), slice(middle, None)), (slice(middle, None), slice(None, middle))):
        chosen[half] = np.argmin(losses[:, other].mean(axis=1)) if len(y[other]) else 0
    at = chosen, np.arange(len(y))
    return probabilities[at], losses[at]


def test_each_half_scores_the_model_that_the_other_half_chooses():
    """Without training: parties choose between two models."""
    data = parties(SIZES, 0)
    problem, index = rv.problems.LearningProblem(rv.models.logistic(3, 2), data), np.arange(len(SIZES))
    models = [{"weight": jnp.array([[weight, -1.0, 0.5]]), "bias": jnp.array([bias])}
              for weight, bias in ((1.0, 0.0), (-1.0, 0.5))]

    def choose(held):
        def chosen(k):
            first, second = (held.oracle(k).held_out(model)[0] for model in models)
            return jax.tree.map(lambda a, b: jnp.where(second < first, b, a), *models)
        return jax.jit(jax.vmap(chosen))(index)

    before = {"loss": jnp.full((len(SIZES), len(problem.splits)), 7.0)}
    scores = np.asarray(cross_fitted_scores(problem, before, cross_fit(problem, choose), index)["loss"])
    validation = problem.splits.index("validation")
    assert (np.delete(scores, validation, axis=1) == 7).all()
    expected = [half_by_half(*data.party(k, "validation"), *models, points=2)[1].mean() for k in range(len(SIZES) - 1)]
    np.testing.assert_allclose(scores[:, validation], [*expected, np.nan], rtol=1e-5)
    both = [np.abs(models[0]["weight"] - weight).max() for half in cross_fit(problem, choose)
            for weight in np.asarray(half.models["weight"])]
    assert min(both) == 0 < max(both)  # the halves do not all choose one model


@pytest.mark.when_changed
@nightly.parametrize("memory", ["device", "host"])
def test_scores_and_metrics_are_those_of_the_model_that_the_other_half_chooses(memory):
    data = parties(SIZES, 0)
    assert data.sizes("validation")[-4:].tolist() == [3, 2, 1, 0]
    result = run(rv.model_interpolation(SOLVER, rv.fedavg(SOLVER)), data, metrics=[rv.metrics.ROCAUC()], memory=memory)
    local, joint = run(rv.local(SOLVER), data), run(rv.fedavg(SOLVER), data).server_model
    loss, accuracy, area = (result.scores("validation", name).loc[3] for name in ("loss", "accuracy", "roc_auc"))
    assert list(loss.index) == list(range(len(SIZES) - 1))
    for k in loss.index:
        x, y = data.party(k, "validation")
        p, losses = half_by_half(x, y, local.personal_model(k), joint)
        assert loss[k] == pytest.approx(losses.mean(), rel=1e-4)
        assert accuracy[k] == pytest.approx(np.mean((p > 0.5) == y), abs=1e-6)
        if 0 < y.mean() < 1:
            assert area[k] == pytest.approx(roc_auc_score(y, p), abs=1e-6)
    chosen = result.personal_model(0)  # by all validation samples, as without a comparison
    x, y = data.party(0, "validation")
    z = x @ np.asarray(chosen["weight"]).T + np.asarray(chosen["bias"])
    in_sample = np.mean(np.log1p(np.exp(np.where(y == 1, -z[:, 0], z[:, 0]))))
    assert in_sample < loss[0] + 1e-6


@pytest.mark.nightly
def test_without_a_difference_the_choice_does_not_favour_the_method_that_reads_validation_samples():
    """Labels are coins, so that every model is right in half of all cases: 60 federations of five sites."""
    data = parties([40] * 300, 1, slope=0.0)
    methods = {"alone": rv.local(SOLVER), "mixing": rv.model_interpolation(SOLVER, rv.fedavg(SOLVER)),
               "FedAvg": rv.fedavg(SOLVER)}
    results = {label: run(method, data, name=label) for label, method in methods.items()}
    scores = {label: result.scores("validation").iloc[-1].to_numpy() for label, result in results.items()}
    in_sample = accuracies(data, results["mixing"].personal_models)
    assert in_sample.mean() > 0.54  # what the choice would read without two halves
    assert abs(scores["mixing"].mean() - 0.5) < 3 * 0.5 / np.sqrt(data.sizes("validation").sum())
    favoured = [share_of_mixing(scores | {"mixing": of_mixing}) for of_mixing in (scores["mixing"], in_sample)]
    assert 0.3 < favoured[0] < 0.7
    assert favoured[1] > 0.8


def accuracies(data, models):
    """[N] the share of the validation samples that each party's model predicts."""
    values = []
    for k in range(len(data)):
        x, y = data.party(k, "validation")
        z = x @ np.asarray(models["weight"][k]).T + np.asarray(models["bias"][k])
        values.append(np.mean((z[:, 0] > 0) == y))
    return np.array(values)


def share_of_mixing(scores):
    """The share of federations of five sites in which mixing has the best mean validation score."""
    means = {label: of.reshape(-1, 5).mean(axis=1) for label, of in scores.items() if label != "alone"}
    return np.mean(means["mixing"] >= np.max([*means.values()], axis=0))


class Stopping(rv.combinators.Combinator):
    """Parties that look at their validation samples in every round."""

    def party(self, inner, state, message, oracle, key, effort, phase):
        after, reply, info = super().party(inner, state, message, oracle, key, effort, phase)
        return after, jax.tree.map(lambda leaf: leaf + 0 * oracle.held_out(message.inner)[0], reply), info


@pytest.mark.when_changed
def test_samples_that_parties_read_while_they_train_have_no_validation_scores():
    data = parties((60, 50, 40), 2)
    table = run(Stopping(rv.fedavg(SOLVER)), data, metrics=[rv.metrics.ROCAUC()]).metrics
    assert set(table["split"].dropna()) == {"train", "test"}
    assert "validation" in set(run(rv.fedavg(SOLVER), data).metrics["split"])
