"""Models from PyTorch: the same trajectories as in JAX, and clear errors. Skipped where PyTorch is not installed."""

import pickle
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import resolvent as rv
from resolvent.problem.models.losses import CrossEntropy, WeightedLabels, WeightedLoss
from resolvent.simulator.checkpoint.identity import fingerprint_of
from resolvent.testing import check_algorithm, contract
from resolvent.testing.example import example_problem

torch = pytest.importorskip("torch")


class Example(torch.nn.Module):
    """The network of the contract."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4, bias=False), torch.nn.Linear(4, 3)
        with torch.no_grad():
            for layer in (self.first, self.second):
                layer.weight.copy_(torch.cos(torch.arange(12.0)).reshape(layer.weight.shape) / 2)
            self.second.bias.zero_()

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class WithFeatures(Example):
    """The network, with the pair of its outputs and its features."""

    def forward(self, x):
        features = torch.tanh(self.first(x))
        return self.second(features), features


class Dropped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.dropout = torch.nn.Linear(4, 2), torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.linear(self.dropout(x))


class CountsCalls(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.linear(x)


class Noisy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x + torch.randn_like(x) if self.training else x)


def torch_problem(sizes=contract.SIZES):
    """The problem of the contract with the network in PyTorch."""
    return eqx.tree_at(lambda p: p.model, example_problem(sizes), rv.models.from_torch(Example()))


def small_data(features=4, classes=2, rows=6):
    rng = np.random.default_rng(0)
    return rv.FederatedData.from_arrays([rng.normal(size=(rows, features)) for _ in range(3)],
                                        [np.arange(rows) % classes for _ in range(3)],
                                        validation=0, test=0, classes=[*map(str, range(classes))])


def test_fedprox_has_the_trajectory_of_the_same_network_in_jax():
    finals = {}
    for name, problem in (("jax", example_problem()), ("torch", torch_problem())):
        algorithm = rv.fedprox(contract.example_solver(), mu=0.5)
        finals[name] = contract.run_rounds(algorithm, problem, contract.PARTICIPATION, seed=1, rounds=2).server
    expected, actual = finals["jax"], finals["torch"]
    np.testing.assert_allclose(actual["first.weight"], expected["layer 0"]["weight"], atol=1e-6)
    np.testing.assert_allclose(actual["second.bias"], expected["layer 1"]["bias"], atol=1e-6)


@pytest.mark.parametrize("make", [
    rv.moon, pytest.param(rv.feddecorr, marks=pytest.mark.when_changed),
    lambda solver: rv.fedproto(solver, classes=3, features=4)], ids=["moon", "feddecorr", "fedproto"])
def test_methods_that_compare_features_have_the_trajectory_of_the_same_network_in_jax(make):
    first = {name: jnp.asarray(p.detach().numpy()) for name, p in WithFeatures().named_parameters()}

    def apply(p, x):
        features = jnp.tanh(x @ p["first.weight"].T)
        return features @ p["second.weight"].T + p["second.bias"], features

    models = (rv.models.from_torch(WithFeatures(), returns_features=True),
              rv.models.from_functions(lambda key: first, apply, returns_features=True))
    actual, expected = (rv.simulate(make(rv.SGD(0.2, batch_size=3)), model, small_data(features=3, classes=3), rounds=2,
                                    progress=False).personal_model(1) for model in models)
    for name, leaf in expected.items():
        np.testing.assert_allclose(actual[name], leaf, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("make", [rv.fedavg, rv.scaffold, rv.perfedavg, rv.apfl, rv.fedgeomed_plus],
                         ids=lambda preset: preset.__name__)
def test_contract_with_a_pytorch_model(make, monkeypatch):
    monkeypatch.setattr(contract, "example_problem", torch_problem)
    check_algorithm(lambda solver: make(solver))  # a new function: results of the other model are stored by function


def test_value_gradient_and_second_derivative_are_those_of_the_same_network():
    torch_oracle, oracle = torch_problem().oracle(jnp.array(4)), example_problem().oracle(jnp.array(4))
    w = jax.tree.map(lambda leaf: leaf + 0.1, example_problem().init(jax.random.key(0)))
    v = {"first.weight": w["layer 0"]["weight"], "second.weight": w["layer 1"]["weight"],
         "second.bias": w["layer 1"]["bias"]}

    @partial(jax.jit, static_argnums=0)
    def derivatives(names, oracle, w):
        positions, mask = jnp.arange(4), jnp.arange(4) < 3
        gradients = [oracle.grad, lambda w: oracle.batch_grad(w, positions, mask)[0]]
        first = [gradient(w) for gradient in gradients]
        second = [jax.jvp(gradient, (w,), (w,))[1] for gradient in gradients]
        return oracle.value(w), [[of_leaf(tree) for of_leaf in names] for tree in (*first, *second)]

    flat = (lambda t: t["first.weight"], lambda t: t["second.weight"], lambda t: t["second.bias"])
    nested = (lambda t: t["layer 0"]["weight"], lambda t: t["layer 1"]["weight"], lambda t: t["layer 1"]["bias"])
    actual, expected = derivatives(flat, torch_oracle, v), derivatives(nested, oracle, w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), actual, expected)


def test_weights_of_samples_are_those_of_the_same_network():
    weighted = WeightedLoss(CrossEntropy())
    x = jnp.cos(jnp.arange(12.0)).reshape(4, 3)
    y = WeightedLabels(jnp.array([0, 2, 1, 0]), jnp.array([1.0, 0.5, 2.0, 3.0]))
    rows, mask = jnp.array([3, 1, 2]), jnp.array([True, True, False])
    flat, nested = (eqx.tree_at(lambda m: m.loss, problem.model, weighted)
                    for problem in (torch_problem(), example_problem()))
    w = example_problem().init(jax.random.key(0))
    v = {"first.weight": w["layer 0"]["weight"], "second.weight": w["layer 1"]["weight"],
         "second.bias": w["layer 1"]["bias"]}
    actual, expected = flat.batch_gradient(v, x, y, rows, mask), nested.batch_gradient(w, x, y, rows, mask)
    np.testing.assert_allclose(actual["second.bias"], expected["layer 1"]["bias"], rtol=1e-5)
    np.testing.assert_allclose(actual["first.weight"], expected["layer 0"]["weight"], rtol=1e-5, atol=1e-7)


def test_dropout_draws_from_the_key_of_each_step():
    """Training can be repeated and differs between seeds; PyTorch's random state is not changed."""
    data, model = small_data(), rv.models.from_torch(Dropped)
    assert model.has_random_layers
    state = torch.get_rng_state()
    finals = [rv.simulate(rv.fedavg(rv.SGD(0.1, batch_size=3)), model, data, rounds=1, seed=seed,
                          progress=False).server_model["linear.weight"] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(finals[0], finals[1])
    assert np.abs(finals[0] - finals[2]).max() > 1e-3
    assert torch.equal(state, torch.get_rng_state())
    w, x = model.init(jax.random.key(0)), jnp.ones((2, 4))
    in_step = [model.in_training(jax.random.key(k)).apply(w, x) for k in (0, 1)]
    assert not np.allclose(*in_step)
    np.testing.assert_array_equal(model.apply(w, x), model.apply(w, x))


def test_a_function_makes_the_first_model_from_the_seed_and_a_module_is_the_first_model():
    made, module = rv.models.from_torch(lambda: torch.nn.Linear(4, 2)), torch.nn.Linear(4, 2)
    first, again, other = (made.init(jax.random.key(k))["weight"] for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    fixed = rv.models.from_torch(module)
    np.testing.assert_array_equal(fixed.init(jax.random.key(3))["weight"], module.weight.detach().numpy())
    assert fingerprint_of(fixed) == fingerprint_of(rv.models.from_torch(module))
    assert fingerprint_of(fixed) != fingerprint_of(rv.models.from_torch(torch.nn.Linear(4, 2)))


def test_frozen_parameters_are_constants_and_the_trained_module_is_returned(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GroupNorm(1, 3), torch.nn.Linear(3, 2))
    module[0].requires_grad_(False)
    model = rv.models.from_torch(module, loss=long_cross_entropy)
    result = rv.simulate(rv.fedavg(rv.SGD(0.1, batch_size=3)), model, small_data(), rounds=1, progress=False)
    assert sorted(result.server_model) == ["1.bias", "1.weight", "2.bias", "2.weight"]
    result.save(tmp_path / "run")
    trained = rv.load(tmp_path / "run", method="run", model=model).to_torch()
    assert torch.equal(trained[0].weight, module[0].weight)
    np.testing.assert_array_equal(trained[2].weight.detach(), result.server_model["2.weight"])
    x = np.ones((5, 4), np.float32)
    np.testing.assert_allclose(trained(torch.from_numpy(x)).detach(), result.fitted().outputs(x), rtol=1e-5)
    from safetensors.torch import load_file

    assert torch.equal(load_file(tmp_path / "run/models/server.safetensors")["2.weight"], trained[2].weight)


def long_cross_entropy(outputs, y):
    return torch.nn.functional.cross_entropy(outputs, y.long(), reduction="none")


def test_a_model_can_be_pickled():
    model = pickle.loads(pickle.dumps(rv.models.from_torch(Example)))
    key = jax.random.key(0)
    np.testing.assert_array_equal(model.init(key)["first.weight"],
                                  rv.models.from_torch(Example).init(key)["first.weight"])


@pytest.mark.parametrize(("module", "message"), [
    (torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2, track_running_stats=False)),
     "without running statistics in 1, .*GroupNorm"),
    (CountsCalls(), "changes its buffers calls"),
    (Noisy(), "draws random numbers in training.*random_layers=True"),
    (torch.nn.LSTM(4, 2), "returns a tuple, and a model returns one tensor"),
    (torch.nn.Linear(5, 2), "does not fit the data.*shapes cannot be multiplied"),
    (torch.nn.Linear(4, 2).requires_grad_(False), "no parameters with requires_grad=True"),
    (torch.nn.Linear, "must be a torch.nn.Module, or a function without arguments"),
    (lambda: 3, "must return a torch.nn.Module, got int"),
])
def test_modules_that_cannot_be_trained_are_refused(module, message):
    with pytest.raises(rv.InputError, match=message):
        rv.simulate(rv.fedavg(rv.SGD(0.1)), rv.models.from_torch(module), small_data(), rounds=1, progress=False)
