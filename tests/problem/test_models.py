"""Models and losses: built-in, from functions, from Equinox, from Flax."""

from collections.abc import Callable

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import nightly
import resolvent as rv
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, SquaredError

DATA = rv.datasets.digits(parties=3, classes_per_party=4, seed=1)
SOLVER = rv.SGD(0.1, batch_size=16, epochs=2)


def final_scores(model, data=DATA, rounds=10):
    result = rv.simulate(rv.fedavg(SOLVER), model, data, rounds=rounds, evaluate_every=rounds, progress=False)
    return result.scores("train").iloc[-1]


@pytest.mark.when_changed
@nightly.parametrize("model", [
    rv.models.from_functions(lambda key: jnp.zeros((10, 64)), lambda p, x: x @ p.T,
                             loss=lambda outputs, y: -jax.nn.log_softmax(outputs)[jnp.arange(len(y)), y]),
    rv.models.from_equinox(lambda key: eqx.nn.MLP(64, 10, 16, 1, key=key)),
    rv.models.from_flax(nn.Dense(10), np.zeros((1, 64))),
    rv.models.logistic(64, 10),
    rv.models.mlp(64, 10, width=16, depth=2),
    rv.models.from_functions(lambda key: {"w": 0.01 * jax.random.normal(key, (64, 10))}, lambda p, x: x @ p["w"]),
], ids=["own loss", "equinox", "flax", "logistic", "mlp", "functions"])
def test_it_learns_digits(model):
    before, after = (final_scores(model, rounds=rounds) for rounds in (1, 12))
    assert after.mean() > max(0.6, before.mean())


@pytest.mark.when_changed
def test_regression_finds_the_least_squares_solution():
    data = rv.datasets.synthetic(parties=4, samples=40, heterogeneity=0.0, noise=0.0)
    result = rv.simulate(rv.fedavg(rv.solvers.GD(0.3, steps=5)), rv.models.linear(10), data, rounds=60, progress=False)
    x = np.concatenate([data.party(k)[0] for k in range(4)])
    y = np.concatenate([data.party(k)[1] for k in range(4)])
    exact, *_ = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)
    model = result.server_model
    np.testing.assert_allclose(np.r_[model["weight"][0], model["bias"]], exact, atol=1e-4)
    assert result.problem.score_name == "squared_error"
    assert not result.problem.higher_is_better


def test_binary_logistic_is_multinomial_with_the_difference_of_the_weights():
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(20, 4))), jnp.asarray(rng.integers(0, 2, 20))
    w = jnp.asarray(rng.normal(size=(2, 4)))
    binary = rv.models.logistic(4, 2)
    assert isinstance(binary.loss, BinaryCrossEntropy)
    single = {"weight": w[1:] - w[:1], "bias": jnp.zeros(1)}
    both = x @ w.T
    np.testing.assert_allclose(binary.loss.loss(binary.apply(single, x), y), CrossEntropy().loss(both, y), rtol=1e-5)
    np.testing.assert_array_equal(binary.loss.score(binary.apply(single, x), y), CrossEntropy().score(both, y))


def test_squared_error_is_half_and_its_score_whole():
    outputs, y = jnp.array([[1.0], [4.0]]), jnp.array([0.0, 1.0])
    np.testing.assert_allclose(SquaredError().loss(outputs, y), [0.5, 4.5])
    np.testing.assert_allclose(SquaredError().score(outputs, y), [1.0, 9.0])


@pytest.mark.when_changed
def test_the_pooled_optimum_is_scikit_learns():
    """Logistic regression without intercept, weight decay l2: sklearn's C is 1/(n l2)."""
    from sklearn.linear_model import LogisticRegression

    from resolvent.problem.solvers.lbfgs import pooled_optimum

    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 3)) for n in (20, 35)]
    y = [(rows @ [1.0, -2, 0.5] + rng.normal(size=len(rows)) > 0).astype(int) for rows in x]
    l2 = 0.01
    model = rv.models.from_functions(lambda key: jnp.zeros(3), lambda w, x: x @ w, loss="binary_cross_entropy", l2=l2)
    with jax.enable_x64(True):
        problem = rv.problems.LearningProblem(model, rv.FederatedData.from_arrays(x, y, validation=0, test=0))
        w, size, _ = pooled_optimum(problem, problem.init(jax.random.key(0)), tolerance=1e-10)
        assert float(size) <= 1e-10
    reference = LogisticRegression(C=1 / (55 * l2), fit_intercept=False, tol=1e-12, max_iter=1000).fit(
        np.concatenate(x), np.concatenate(y))
    np.testing.assert_allclose(w, reference.coef_[0], atol=1e-6)


def test_equinox_keeps_only_floating_arrays_as_parameters():
    model = rv.models.from_equinox(lambda key: eqx.nn.MLP(3, 2, 4, 1, key=key))
    leaves = jax.tree.leaves(model.init(jax.random.key(0)))
    assert sorted(leaf.shape for leaf in leaves) == [(2,), (2, 4), (4,), (4, 3)]


def test_flax_with_running_statistics_says_how_a_training_step_is_called():
    with pytest.raises(ValueError, match=r"variables \['batch_stats'\].*training="):
        rv.models.from_flax(nn.BatchNorm(use_running_average=False), np.zeros((1, 4)))


def test_equinox_layers_without_a_state():
    def module(norm):
        return lambda key: eqx.nn.Sequential([eqx.nn.Linear(3, 4, key=key), norm(key)])

    for works in (module(lambda key: eqx.nn.GroupNorm(1, 4)), module(lambda key: eqx.nn.LayerNorm(4)),
                  lambda key: eqx.nn.WeightNorm(eqx.nn.Linear(3, 4, key=key))):
        model = rv.models.from_equinox(works)
        assert jax.eval_shape(lambda model=model: model.apply(model.init(jax.random.key(0)), jnp.ones((2, 3)))
                              ).shape == (2, 4)


def test_equinox_needs_a_module():
    with pytest.raises(rv.InputError, match="return a module that maps one sample"):
        rv.models.from_equinox(lambda key: jnp.zeros(3))


def test_a_module_instead_of_a_function_that_makes_it_is_refused_with_advice():
    module = eqx.nn.Linear(64, 10, key=jax.random.key(3))
    with pytest.raises(rv.InputError, match=r"cannot be called with a random key.*It is a module: give a function"):
        rv.models.from_equinox(module)
    advised = rv.models.from_equinox(lambda key: module)
    assert jnp.array_equal(jax.tree.leaves(advised.init(jax.random.key(0)))[0], module.weight)
    with pytest.raises(rv.InputError, match=r"cannot be called with nnx\.Rngs.*It is a module: give a function"):
        rv.models.from_nnx(nnx.Linear(64, 10, rngs=nnx.Rngs(0)))


def test_an_equinox_module_for_batches_is_refused_with_the_shape_of_a_sample():
    class ForBatches(eqx.nn.Linear):
        def __call__(self, x):
            return jax.vmap(super().__call__)(x)

    model = rv.models.from_equinox(lambda key: ForBatches(64, 10, key=key))
    with pytest.raises(rv.InputError, match=r"called with one sample, \[64\], which has no axis of a batch"):
        rv.problems.LearningProblem(model, DATA)


def test_tokens_without_a_vocabulary_are_refused_with_advice():
    tokens = [np.arange(12).reshape(4, 3) % 5]
    model = rv.models.from_functions(lambda key: jnp.zeros((5, 2)), lambda p, x: p[x].sum(axis=1))
    with pytest.raises(rv.InputError, match=r"give tokens a vocabulary, from_arrays\(\.\.\., vocabulary=\.\.\.\)"):
        rv.problems.LearningProblem(model, rv.FederatedData.from_arrays(tokens, [np.arange(4) % 2]))
    known = rv.FederatedData.from_arrays(tokens, [np.arange(4) % 2], vocabulary=tuple("abcde"))
    assert rv.problems.LearningProblem(model, known).parties == 1


def test_dropout_in_an_equinox_module_with_samples_of_several_arrays():
    class Network(eqx.Module):
        layer: eqx.nn.Linear
        dropout: eqx.nn.Dropout

        def __init__(self, key):
            self.layer, self.dropout = eqx.nn.Linear(3, 2, key=key), eqx.nn.Dropout(0.5)

        def __call__(self, x, key=None):
            return self.dropout(self.layer(x["a"] + x["b"]), key=key)

    model = rv.models.from_equinox(Network)
    outputs = model.apply_function(model.init(jax.random.key(0)), {"a": jnp.ones((5, 3)), "b": jnp.ones((5, 3))},
                                   jax.random.key(1))
    assert outputs.shape == (5, 2)


@pytest.mark.parametrize(("model", "message"), [
    (rv.models.logistic(63, 10), "the model does not fit the data"),
    (rv.models.logistic(64, 4), r"the model has 4 output\(s\), but the data has 10 classes"),
    (rv.models.logistic(64, 2), "the binary cross-entropy is for two classes, but the data has 10"),
    (rv.models.from_functions(lambda key: jnp.zeros((64, 1)), lambda p, x: x @ p), r"the model has 1 output\(s\)"),
    (rv.models.from_functions(lambda key: jnp.zeros(64, int), lambda p, x: x @ p.astype(float),
                              loss="squared_error"), "must be floating numbers"),
    (rv.models.from_functions(lambda key: jnp.zeros((64, 2)), lambda p, x: x @ p, loss=lambda o, y: o),
     r"loss must have one number per sample, \[2\] for 2 samples, got \[2, 2\]"),
    (rv.models.from_functions(lambda key: jnp.zeros((64, 10)), lambda p, x: x @ p, loss=lambda o, y: jnp.mean(o)),
     r"got \[\] \(float32\): return the loss of every sample, not their mean"),
    (rv.models.from_functions(lambda key: jnp.zeros((64, 10)), lambda p, x: x @ p,
                              loss=lambda o, y: (o[:, 0], {"entropy": o[:, 1]})), "return the loss alone; metrics="),
    (rv.models.from_functions(lambda key: {"w": jnp.zeros((64, 10)), "steps": 0}, lambda p, x: x @ p["w"]),
     "must be floating numbers, but 'steps' is int32: keep constants outside"),
    (rv.models.from_functions(lambda key: jnp.zeros((64, 10)), lambda p, x: x @ p, loss=lambda o, y: y),
     "the model's loss must be floating numbers, got int32"),
    (rv.models.from_functions(lambda key: jnp.zeros((63, 10)), lambda p, x: x @ p["w"]),
     "the model does not fit the data.*TypeError"),
    (rv.models.from_flax(nn.Dense(10), np.zeros((1, 63))), "the model does not fit the data.*ScopeParamShapeError"),
])
def test_a_model_that_does_not_fit_is_refused_before_any_work(model, message):
    with pytest.raises(rv.InputError, match=message):
        rv.problems.LearningProblem(model, DATA)


class Pooled(nn.Module):
    """A network with one output for all samples of a batch."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(x).mean(axis=0, keepdims=True)


@pytest.mark.parametrize(("model", "message"), [
    (rv.models.from_functions(lambda key: jnp.zeros((64, 10)), lambda p, x: (x @ p).mean(axis=0)), r"\[10\] \(float"),
    (rv.models.from_functions(lambda key: jnp.zeros((64, 1)), lambda p, x: (x @ p).mean(axis=0, keepdims=True),
                              loss="squared_error"), r"\[1, 1\] \(float"),
    (rv.models.from_functions(lambda key: jnp.zeros(2), lambda p, x: p, loss="squared_error"),
     r"for inputs \[3, 64\] its outputs are \[2\] \(float"),
    (rv.models.from_flax(Pooled(), np.zeros((1, 64))), r"for inputs \[2, 64\] its outputs are \[1, 10\] \(float"),
    (rv.models.from_equinox(lambda key: eqx.nn.MLP(64, "scalar", 4, 1, key=key)),
     r"the cross-entropy needs outputs \[samples, classes\], got \[2\] \(float"),
], ids=["functions", "functions keepdims", "as many outputs as samples", "flax", "equinox scalar"])
def test_a_model_with_one_output_for_a_batch_is_refused(model, message):
    """Broadcasting makes a loss per sample from it, so that it would train, wrongly."""
    with pytest.raises(rv.InputError, match=message):
        rv.problems.LearningProblem(model, DATA)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: rv.models.logistic(0, 3), r"features=0\) must lie in \[1, inf\)"),
    (lambda: rv.models.logistic(4, 1), "classes=1"),
    (lambda: rv.models.mlp(4, 3, depth=0), r"depth=0\) must lie in \[1, inf\)"),
    (lambda: rv.models.from_functions(lambda k: 0, lambda p, x: x, loss="crossentropy"),
     "loss='crossentropy'"),
    (lambda: rv.models.from_functions(lambda k: 0, lambda p, x, key: x), r"requires key.*key=None.*random_layers=True"),
    (lambda: rv.models.from_functions(lambda k: 0, lambda p, x, *, key: x), r"requires key.*apply\(params, x\)"),
    (lambda: rv.models.from_equinox(NeedsKey), r"__call__ of NeedsKey requires key.*key=None"),
])
def test_wrong_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class NeedsKey(eqx.Module):
    """A module that cannot be called without a key."""

    linear: eqx.nn.Linear

    def __init__(self, key):
        self.linear = eqx.nn.Linear(2, 2, key=key)

    def __call__(self, x, key):
        return self.linear(x)


def test_data_with_one_class_are_refused():
    data = rv.FederatedData.from_arrays([np.eye(4)], [["well"] * 4])
    with pytest.raises(rv.InputError, match=r"every label of the data 'data' is 'well'.*classes="):
        rv.problems.LearningProblem(rv.models.logistic(4, 2), data)


class ScaledLinear(eqx.Module):
    """A linear layer whose activation holds an array that the constructor computes."""

    linear: eqx.nn.Linear
    activation: Callable[[jax.Array], jax.Array]

    def __init__(self, key):
        scale = jnp.arange(1.0, 4.0)
        self.linear = eqx.nn.Linear(5, 3, key=key)
        self.activation = lambda h: scale * h

    def __call__(self, x):
        return self.activation(self.linear(x))


@pytest.mark.when_changed
def test_a_module_is_built_without_its_random_weights_unless_a_function_holds_an_array():
    built = []

    def make(key):
        built.append(isinstance(key, jax.core.Tracer))
        return eqx.nn.MLP(5, 3, 4, 1, key=key)

    model = rv.models.from_equinox(make)
    assert built == [True]
    params = jax.jit(model.init)(jax.random.key(1))
    x, module = jnp.ones((2, 5)), eqx.nn.MLP(5, 3, 4, 1, key=jax.random.key(1))
    np.testing.assert_array_equal(jax.jit(model.apply)(params, x), jax.jit(lambda x: jax.vmap(module)(x))(x))
    scaled = rv.models.from_equinox(ScaledLinear)
    np.testing.assert_allclose(scaled.apply(scaled.init(jax.random.key(1)), x),
                               jax.vmap(ScaledLinear(jax.random.key(1)))(x), rtol=1e-6)


def test_an_nnx_module_is_built_without_its_random_weights_unless_it_needs_their_values():
    built = []

    class Scaled(nnx.Module):
        def __init__(self, rngs, needs_values):
            built.append(isinstance(rngs.params.key.get_value(), jax.core.Tracer))
            self.linear = nnx.Linear(5, 3, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)
            self.scale = 1.0 + (float(self.linear.bias[0]) if needs_values else 0.0)

        def __call__(self, x):
            return self.scale * self.dropout(self.linear(x))

    x = jnp.ones((2, 5))
    for needs_values, expected in ((False, [True]), (True, [True, False])):
        built.clear()
        model = rv.models.from_nnx(lambda rngs, needs_values=needs_values: Scaled(rngs, needs_values))
        assert built == expected
        module = Scaled(nnx.Rngs(jax.random.key(1)), needs_values)
        module.eval()
        np.testing.assert_array_equal(model.apply(model.init(jax.random.key(1)), x), module(x))
