"""Local objectives with a context against plain NumPy loops, whose gradients are differences of values."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import equal, personal_models, quadratic, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms.description import describe
from resolvent.algorithms.methods.aggregation import ModelAggregation
from resolvent.algorithms.methods.prototypes import ClassSums
from resolvent.math import tree
from resolvent.testing import example_solver

RATE, STEPS, ROUNDS = 0.3, 2, 2
GD = rv.solvers.GD(RATE, steps=STEPS)
ALL_SAMPLES = rv.SGD(RATE, batch_size=11, epochs=STEPS)  # each minibatch has all samples of a party
SGD = rv.SGD(0.2, batch_size=4, epochs=2)
SIZES = (5, 8, 11)


@cache
def network():
    """Three parties, of which the first has only two of three classes, with a network of four hidden units."""
    rng = np.random.default_rng(4)
    x = [rng.normal(rng.normal(size=3), 1, size=(n, 3)) for n in SIZES]
    y = [rng.integers(0, 2 if k == 0 else 3, n) for k, n in enumerate(SIZES)]
    data = rv.FederatedData.from_arrays(x, y, validation=0, test=0, classes=["0", "1", "2"])
    return rv.problems.LearningProblem(rv.models.mlp(3, 3, width=4), data)


def party_data(k):
    problem = network()
    first = int(problem.offset[0, k])
    return np.asarray(problem.x[first:first + SIZES[k]]), np.asarray(problem.y[first:first + SIZES[k]])


def forward(params, x):
    """The outputs and the features of one sample."""
    features = np.maximum(params["layer 0"]["weight"] @ x + params["layer 0"]["bias"], 0)
    return params["layer 1"]["weight"] @ features + params["layer 1"]["bias"], features


def log_softmax(z):
    return z - np.log(np.sum(np.exp(z)))


def cosine(a, b):
    return a @ b / np.sqrt((a @ a) * (b @ b)) if a.any() and b.any() else 0.0


def moon_loss(w, x, y, shared, previous):
    total = 0.0
    for a, c in zip(x, y, strict=True):
        (outputs, z), (_, of_shared), (_, of_previous) = (forward(v, a) for v in (w, shared, previous))
        positive, negative = np.exp(cosine(z, of_shared) / 0.5), np.exp(cosine(z, of_previous) / 0.5)
        total += -log_softmax(outputs)[c] - 1.5 * np.log(positive / (positive + negative))
    return total / len(x)


def fedntd_loss(w, x, y, shared, previous):
    total = 0.0
    for a, c in zip(x, y, strict=True):
        outputs, of_shared = (forward(v, a)[0] for v in (w, shared))
        others = [i for i in range(3) if i != c]
        p, q = (log_softmax(o[others] / 2.0) for o in (of_shared, outputs))
        total += -log_softmax(outputs)[c] + 0.7 * 2.0**2 * np.sum(np.exp(p) * (p - q))
    return total / len(x)


def feddecorr_loss(w, x, y, shared, previous):
    results = [forward(w, a) for a in x]
    features = np.array([z for _, z in results])
    z = (features - features.mean(axis=0)) / np.sqrt(features.var(axis=0) + 1e-8)
    correlations = z.T @ z / len(x)
    loss = np.mean([-log_softmax(o)[c] for (o, _), c in zip(results, y, strict=True)])
    return loss + 0.4 / 4**2 * np.sum(correlations**2)


def fedlc_loss(w, x, y, shared, previous):
    margins = np.array([max(np.sum(y == c), 1e-8) ** -0.25 for c in range(3)])
    return np.mean([-log_softmax(forward(w, a)[0] - 0.6 * margins)[c] for a, c in zip(x, y, strict=True)])


def descend(loss, w, *context):
    """Steps along the central differences of a loss."""
    leaves, structure = jax.tree.flatten(w)
    flat, ends = np.concatenate([np.ravel(leaf) for leaf in leaves]), np.cumsum([np.size(leaf) for leaf in leaves])

    def unravel(v):
        parts = np.split(v, ends[:-1])
        return jax.tree.unflatten(structure, [part.reshape(np.shape(leaf))
                                              for part, leaf in zip(parts, leaves, strict=True)])

    def value(v):
        return loss(unravel(v), *context)

    for _ in range(STEPS):
        gradient = np.array([(value(flat + d) - value(flat - d)) / 2e-6 for d in 1e-6 * np.eye(len(flat))])
        flat = flat - RATE * gradient
    return unravel(flat)


def average(models):
    return jax.tree.map(lambda *leaves: sum(n * leaf for n, leaf in zip(SIZES, leaves, strict=True)) / sum(SIZES),
                        *models)


METHODS = {
    "moon": (lambda solver: rv.moon(solver, mu=1.5), moon_loss),
    "fedntd": (lambda solver: rv.fedntd(solver, beta=0.7, temperature=2.0), fedntd_loss),
    "feddecorr": (lambda solver: rv.feddecorr(solver, beta=0.4), feddecorr_loss),
    "fedlc": (lambda solver: rv.fedlc(solver, tau=0.6), fedlc_loss),
}


@jax.jit
def value(oracle, w):
    return oracle.value(w)


@pytest.mark.when_changed
@pytest.mark.parametrize("name", sorted({*METHODS} - {"feddecorr"}))  # which is a number for a minibatch
def test_the_objective_of_a_party_is_that_of_the_paper(name):
    make, loss = METHODS[name]
    w, shared, previous = (network().init(jax.random.key(seed)) for seed in range(3))
    needs = {"shared": shared} | ({"previous": previous} if name == "moon" else {})
    for k in (0, 2):  # the first has samples of two classes only
        oracle = network().oracle(jnp.array(k)).with_objective(make(ALL_SAMPLES).objective, **needs)
        numbers = (jax.tree.map(np.asarray, part) for part in (shared, previous))
        expected = loss(jax.tree.map(np.asarray, w), *party_data(k), *numbers)
        np.testing.assert_allclose(value(oracle, w), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.when_changed
@nightly.parametrize("name", ["moon", "feddecorr", "fedntd", "fedlc"], per_commit=1, others=nightly.WHEN_CHANGED)
def test_method_by_a_plain_loop(name):
    make, loss = METHODS[name]
    states = trajectory(make(ALL_SAMPLES), network(), ROUNDS)
    shared = jax.tree.map(np.asarray, states[0].server.inner)
    previous = [shared] * len(SIZES)
    for state in states[1:]:
        previous = [descend(loss, shared, *party_data(k), shared, previous[k]) for k in range(len(SIZES))]
        shared = average(previous)
        equal(state.server.inner, shared, 1e-7)
        if name == "moon":
            equal(state.parties.extra, jax.tree.map(lambda *leaves: np.stack(leaves), *previous), 1e-7)


def test_fedproto_by_a_plain_loop():
    algorithm = rv.fedproto(GD, classes=3, features=4, lam=0.8)
    states = trajectory(algorithm, network(), ROUNDS)
    models, means, known = [jax.tree.map(lambda leaf: np.asarray(leaf)[0], states[0].parties)] * 3, np.zeros((3, 4)), []

    def loss(w, x, y):
        total = 0.0
        for a, c in zip(x, y, strict=True):
            outputs, z = forward(w, a)
            total += -log_softmax(outputs)[c] + (0.8 * np.mean((z - means[c]) ** 2) if c in known else 0)
        return total / len(x)

    for state in states[1:]:
        models = [descend(loss, w, *party_data(k)) for k, w in enumerate(models)]
        by_class = {c: [forward(w, a)[1] for k, w in enumerate(models) for a, b in zip(*party_data(k), strict=True)
                        if b == c] for c in range(3)}
        known = [c for c in range(3) if by_class[c]]
        means = np.array([np.mean(by_class[c], axis=0) if by_class[c] else means[c] for c in range(3)])
        equal(state.server.means, means, 1e-7)
        equal(state.parties, jax.tree.map(lambda *leaves: np.stack(leaves), *models), 1e-7)


@pytest.mark.parametrize(("weights", "expected"), [([20.0, 80.0], 8.4), ([1.0, 1.0], 6.0)], ids=["size", "equal"])
def test_fedprotos_weights_of_a_class_are_numbers_of_samples_if_parties_are_weighted_by_size(weights, expected):
    """Party 0 has 10 of 20 samples of the class, with the mean 2; party 1 has 40 of 80, with the mean 10."""
    algorithm = rv.fedproto(GD, classes=1, features=1)
    sums = ClassSums(jnp.array([[[1.0]], [[5.0]]]), jnp.array([[0.5], [0.5]]))
    replies = rv.Replies(sums, jnp.array(weights), jnp.arange(2), jnp.ones(2, bool), jnp.array(weights))
    after, _ = algorithm.server(algorithm.init(jnp.zeros(1), jnp.ones(2) / 2), replies, jax.random.key(0))
    assert after.means.item() == pytest.approx(expected)


@pytest.mark.parametrize(("path", "is_own"), [
    ("BatchNorm_0.scale", True), ("LayerNorm_1.bias", True), ("bn1.weight", True), ("layer1.0.bn2.bias", True),
    ("encoder.norm.weight", True), ("conv_bn.scale", True), ("Dense_0.kernel", False), ("conv1.weight", False)])
def test_fedbn_keeps_layers_with_the_usual_names_of_normalisation(path, is_own):
    assert tree.is_selected(rv.fedbn(SGD).layers, path) == is_own


@pytest.mark.when_changed
def test_fedbabu_by_a_plain_loop():
    algorithm = rv.fedbabu(GD, layers=("layer 1",))
    states = trajectory(algorithm, network(), ROUNDS)
    shared = head = jax.tree.map(np.asarray, states[0].server.inner.inner)

    grad = jax.jit(lambda k, w: network().oracle(k).grad(w))

    def steps(w, k, layer):
        for _ in range(STEPS):
            gradient = grad(k, jax.tree.map(jnp.asarray, w))
            w = w | {layer: jax.tree.map(lambda a, g: a - RATE * g, w[layer], gradient[layer])}
        return w

    for state in states[1:]:
        shared = average([steps(shared, k, "layer 0") for k in range(3)])
        equal(state.server.inner.inner, shared, 1e-12)
    equal(shared["layer 1"], head["layer 1"])
    tuned = [steps(shared, k, "layer 1") for k in range(3)]
    equal(personal_models(algorithm, network(), states[-1]), jax.tree.map(lambda *leaves: np.stack(leaves), *tuned))


@nightly.parametrize("method", [rv.moon, rv.fedntd, rv.feddecorr, rv.fedlc], per_commit=0)
def test_without_its_term_a_method_is_fedavg(method):
    weight = {rv.moon: "mu", rv.fedlc: "tau"}.get(method, "beta")
    state = trajectory(method(SGD, **{weight: 0.0}), network(), 2)[-1]
    equal(state.server.inner, trajectory(rv.fedavg(SGD), network(), 2)[-1].server)


def own_loss(params, batch, context):
    outputs, features = context.outputs_and_features(params, batch)
    return context.losses(outputs, batch) + 0.1 * jnp.mean(features**2, axis=-1)


def per_batch(params, batch, context):
    return batch.mean(own_loss(params, batch, context))


@pytest.mark.nightly
def test_a_number_for_the_minibatch_is_the_mean_of_numbers_for_its_samples():
    ends = [trajectory(rv.combinators.WithObjective(rv.fedavg(SGD), f), network(), 2)[-1].server.inner
            for f in (own_loss, per_batch)]
    equal(*ends)


def gradients_of(oracle, w, everything):
    """Of all samples, and of a minibatch of all samples, compiled together."""
    return jax.jit(lambda w: (oracle.grad(w), oracle.batch_grad(w, everything, everything >= 0)[0]))(w)


@pytest.mark.when_changed
def test_value_gradient_and_minibatches_are_of_one_function():
    problem = network()
    w, everything, gradients = problem.init(jax.random.key(5)), jnp.arange(SIZES[2]), []
    for objective in (own_loss, per_batch):
        algorithm = rv.combinators.WithObjective(rv.fedavg(SGD), objective)
        oracle = problem.oracle(jnp.array(2)).with_objective(algorithm.objective)
        whole, of_batch = gradients_of(oracle, w, everything)
        equal(whole, jax.grad(oracle.value)(w), 1e-10)
        equal(of_batch, whole, 1e-10)
        gradients.append(whole)
    equal(*gradients, 1e-10)  # a number for the minibatch is the mean of numbers for its samples


@nightly.parametrize("inner", [
    lambda: rv.fedprox(SGD, mu=0.5), lambda: rv.scaffold(SGD), lambda: rv.fedsam(SGD),
    lambda: rv.fedavg(rv.solvers.DPSGD(0.2, clip=0.5, noise_multiplier=0.0, batch_size=4, steps=3))],
    ids=["a proximal term", "a linear term", "a map", "clipped gradients"], per_commit=0)
def test_an_objective_equal_to_the_loss_changes_nothing_of_local_work(inner):
    def loss(params, batch, context):
        return context.losses(context.outputs(params, batch), batch)

    states = [trajectory(algorithm, network(), 2)[-1] for algorithm in (
        rv.combinators.WithObjective(inner(), loss), inner())]
    equal(jax.tree.leaves(states[0]), jax.tree.leaves(states[1]), 1e-10)


@pytest.mark.nightly
def test_objectives_with_weights_of_samples_read_class_numbers():
    rng = np.random.default_rng(0)
    x, y = [rng.normal(size=(n, 3)) for n in SIZES], [rng.integers(0, 3, n) for n in SIZES]
    ends = []
    for weights in (None, [np.ones(n) for n in SIZES]):
        data = rv.FederatedData.from_arrays(x, y, weights=weights, validation=0, test=0, classes=["0", "1", "2"])
        problem = rv.problems.LearningProblem(rv.models.mlp(3, 3, width=4), data)
        ends.append([trajectory(method(SGD), problem, 2)[-1].server.inner for method in (rv.fedlc, rv.fedntd)])
    equal(*ends)


def test_the_context_says_what_it_has():
    def of_previous(params, batch, context):
        return context.previous

    with pytest.raises(AttributeError, match="no value 'previous'; it has: model, shared"):
        trajectory(rv.combinators.WithObjective(rv.fedavg(SGD), of_previous), network(), 1)


class NoInfo(ModelAggregation):
    def party(self, state, shared, oracle, key, effort):
        return *super().party(state, shared, oracle, key, effort)[:2], {}


def two_numbers(params, batch, context):
    return jnp.zeros((2, 2))


MISTAKES = {
    "shape": (lambda: trajectory(rv.combinators.WithObjective(rv.fedavg(SGD), two_numbers), network(), 1),
              rv.InputError, r"two_numbers returned an array of shape \[2, 2\]"),
    "phases": (lambda: rv.combinators.WithObjective(rv.feddane(SGD), own_loss), rv.InputError,
               "algorithm of one phase"),
    "function": (lambda: rv.combinators.WithObjective(rv.fedavg(SGD), 3), rv.InputError, "function"),
    "twice": (lambda: trajectory(rv.combinators.WithObjective(rv.moon(SGD), own_loss), network(), 1),
              rv.InputError, "would replace"),
    "no samples": (lambda: trajectory(rv.moon(SGD), quadratic(), 1), TypeError, "no samples for the local objective"),
    "no model": (lambda: trajectory(rv.combinators.WithObjective(NoInfo(SGD), rv.moon(SGD).objective), network(), 1),
                 rv.InputError, "needs the model after a party's work"),
    "features": (lambda: trajectory(rv.fedproto(SGD, classes=3, features=5), network(), 1),
                 rv.InputError, r"features=5\), but for a sample the model has outputs \[3\] and features \[4\]"),
    "classes": (lambda: trajectory(rv.fedproto(SGD, classes=2, features=4), network(), 1),
                rv.InputError, "classes=2"),
    "head": (lambda: trajectory(rv.fedbabu(SGD), network(), 1), rv.InputError, "'head' matches no parameter"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_have_clear_errors(name):
    run, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        run()


def test_fedntd_needs_three_classes():
    problem = network()
    narrow = rv.models.logistic(3, 2)
    oracle = rv.problems.SampleOracle(problem.sizes[0], narrow, problem.x, problem.y % 2, problem.offset[0, 0], 4)
    w = narrow.init(jax.random.key(0))
    with pytest.raises(rv.InputError, match="at least 3 classes"):
        oracle.with_objective(rv.fedntd(SGD).objective, shared=w).grad(w)


@pytest.mark.when_changed
def test_the_features_of_a_model_are_the_inputs_of_its_last_layer():
    x = jax.random.normal(jax.random.key(0), (2, 28, 28))
    for model in (rv.models.mlp(784, 3, width=4), rv.models.logistic(784, 3), rv.models.mnist_cnn((28, 28, 1), 3)):
        params = jax.jit(model.init)(jax.random.key(1))
        outputs, features = jax.jit(model.apply_with_features)(params, x)
        last = params if "weight" in params else params[max(name for name in params if name.startswith("layer"))]
        equal(outputs, features @ last["weight"].T + last["bias"])
        equal(outputs, jax.jit(model.apply)(params, x))


def test_a_model_without_features_says_how_to_have_them():
    model = rv.models.from_functions(lambda key: jnp.zeros((3, 3)), lambda w, x: x @ w.T)
    with pytest.raises(rv.InputError, match="returns_features=True"):
        model.apply_with_features(jnp.zeros((3, 3)), jnp.zeros((2, 3)))
    pair = rv.models.from_functions(lambda key: jnp.zeros((3, 3)), lambda w, x: x @ w.T, returns_features=True)
    with pytest.raises(rv.InputError, match="must return the pair"):
        pair.apply(jnp.zeros((3, 3)), jnp.zeros((2, 3)))


def test_reads_of_samples_outside_of_gradients_are_described():
    assert "the class counts" in describe(rv.fedlc(example_solver()), network()).reads
    assert "sums over the samples" in describe(rv.fedproto(SGD, classes=3, features=4), network()).reads
    assert describe(rv.moon(SGD), network()).reads == ("a minibatch gradient",)


@pytest.mark.nightly
def test_fine_tuning_of_the_head_changes_only_the_head():
    algorithm = rv.combinators.FineTuned(rv.fedavg(GD), GD, ["layer 1"])
    state = trajectory(algorithm, network(), 1)[-1]
    tuned = personal_models(algorithm, network(), state)
    equal(tuned["layer 0"], jax.tree.map(lambda leaf: np.stack([leaf] * 3), state.server.inner["layer 0"]))
    assert np.ptp(tuned["layer 1"]["weight"], axis=0).max() > 1e-3
    with pytest.raises(rv.InputError, match="'head' matches no parameter"):
        personal_models(rv.combinators.FineTuned(rv.fedavg(GD), GD, "head"), network(), state)


def test_personal_layers_that_nobody_trains_have_no_solver():
    with pytest.raises(rv.InputError, match="leave personal_solver out"):
        rv.combinators.PersonalLayers(rv.fedavg(SGD), ["bias"], SGD, trained=False)
