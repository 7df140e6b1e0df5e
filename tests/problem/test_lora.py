"""LoRA: the map of the adapters, its gradient, the mean of products, and what is sent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import nightly
import resolvent as rv
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.errors import InputError
from resolvent.federation.protocol.experiment import experiment_from_text
from resolvent.math import tree
from resolvent.math.low_rank import Factors, mean_of_products

SOLVER = rv.SGD(0.1, batch_size=8, epochs=1)
SIZES = (16, 9, 24)


def data():
    rng = np.random.default_rng(0)
    return rv.FederatedData.from_arrays([rng.normal(size=(n, 12)) for n in SIZES], [np.arange(n) % 3 for n in SIZES],
                                        validation=0, test=0.2)


def adapted(**settings):
    return rv.models.lora(rv.models.mlp(12, 3, width=8), rank=2, layers="layer 0", **settings)


def moved(model, seed=1):
    """The first adapters, and B moved from zero."""
    noise = iter(jax.random.split(jax.random.key(seed), 9))
    return jax.tree.map(lambda leaf: leaf + jax.random.normal(next(noise), leaf.shape), model.init(jax.random.key(0)))


@pytest.mark.when_changed
@nightly.parametrize("settings", [{}, {"frozen_a": True, "alpha": 3.0, "trained": "layer 1"}],
                     others=nightly.WHEN_CHANGED)
def test_the_weights_are_the_base_plus_the_product_and_the_gradient_follows_the_chain_rule(settings):
    with jax.enable_x64(True):
        model, x = adapted(**settings), jnp.asarray(np.random.default_rng(1).normal(size=(5, 12)))
        y, rows = jnp.array([0, 1, 2, 1, 0]), jnp.array([3, 0, 2])
        first, params = model.init(jax.random.key(0)), moved(model)
        np.testing.assert_array_equal(model.apply(first, x), model.inner.apply(model.base, x))
        a = model.fixed["layer 0.weight"] if settings else params["layer 0.weight"].A
        expected = model.base["layer 0"]["weight"] + settings.get("alpha", 16.0) / 2 * params["layer 0.weight"].B @ a
        np.testing.assert_allclose(model.weights(params)["layer 0"]["weight"], expected, rtol=1e-12)

        def mean(params):
            return jnp.mean(model.loss.loss(model.inner.apply(model.weights(params), x[rows]), y[rows]))

        gradient = model.batch_gradient(params, x, y, rows, jnp.ones(3, bool))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), gradient, jax.grad(mean)(params))


@pytest.mark.when_changed
def test_only_adapters_are_sent_and_stored_and_the_base_does_not_move(tmp_path):
    model = adapted(frozen_a=True)
    result = rv.simulate(rv.ditto(SOLVER, lam=0.1), model, data(), rounds=2, progress=False,
                         checkpoint=tmp_path, seed=0)
    assert [path for path, _ in tree.named_leaves(result.server_model)] == ["layer 0.weight.B"]
    stored = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert 0 < stored < 4 * model.base["layer 0"]["weight"].size * (len(SIZES) + 2)
    assert not np.allclose(result.server_model["layer 0.weight"].B, 0)


def test_the_mean_of_products_is_the_nearest_matrix_of_the_rank():
    with jax.enable_x64(True):
        rng = np.random.default_rng(3)
        factors = Factors(jnp.asarray(rng.normal(size=(4, 2, 7))), jnp.asarray(rng.normal(size=(4, 5, 2))))
        weights = jnp.array([0.1, 0.0, 0.5, 0.4])
        mean, error = jax.jit(mean_of_products)(factors, weights)
        exact = sum(float(w) * np.asarray(b @ a) for w, a, b in zip(weights, *factors, strict=True))
        u, s, vt = np.linalg.svd(exact)
        np.testing.assert_allclose(mean.B @ mean.A, (u[:, :2] * s[:2]) @ vt[:2], atol=1e-12)
        np.testing.assert_allclose(error, np.linalg.norm(s[2:]) / np.linalg.norm(s), rtol=1e-10)


@pytest.mark.when_changed
def test_means_of_factors_are_wrong_and_both_remedies_are_right():
    """The mean of the weights against the weights of the aggregate: FFA-LoRA is exact, LowRankMean the nearest."""
    with jax.enable_x64(True):
        errors = {}
        mean = rv.aggregators.Mean()
        for name, aggregator, frozen in (("factors", mean, False), ("FFA", mean, True),
                                         ("products", rv.aggregators.LowRankMean(), False)):
            model = adapted(frozen_a=frozen)
            replies = [moved(model, seed) for seed in range(3)]
            payload = jax.tree.map(lambda *leaves: jnp.stack(leaves), *replies)
            aggregate, info = aggregator(rv.Replies(payload, jnp.ones(3), jnp.arange(3), jnp.ones(3, bool),
                                                    jnp.full(3, 1 / 3)))
            exact = np.mean([model.weights(p)["layer 0"]["weight"] for p in replies], axis=0)
            base = model.base["layer 0"]["weight"]
            errors[name] = (np.linalg.norm(model.weights(aggregate)["layer 0"]["weight"] - exact)
                            / np.linalg.norm(exact - base))
        assert errors["FFA"] < 1e-14
        assert errors["products"] < errors["factors"] / 1.2
        np.testing.assert_allclose(info["adapter_error"], errors["products"], rtol=1e-8)


@pytest.mark.when_changed
@nightly.parametrize("algorithm", [
    rv.robust(SOLVER, rv.aggregators.LowRankMean()), rv.fedplus(SOLVER, rv.penalties.L2Norm(), sigma=0.1)],
    ids=["mean of products", "Fed+"])
def test_every_algorithm_sees_the_adapters_alone(algorithm):
    """Fed+ around adapters, and FedAvg with the mean of products, run compiled and lower the loss."""
    result = rv.simulate(algorithm, adapted(), data(), rounds=4, progress=False)
    losses = result.scores("train", metric="loss").mean(axis=1)
    assert losses.iloc[-1] < losses.iloc[0]


def test_base_weights_come_from_a_file(tmp_path):
    model = rv.models.mlp(12, 3, width=8)
    weights = model.init(jax.random.key(5))
    arrays = {path: np.asarray(leaf) for path, leaf in tree.named_leaves(weights)}
    save_file(arrays, tmp_path / "model.safetensors")
    read = rv.models.read_weights(model, tmp_path / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, read, weights)
    save_file(arrays | {"head": np.ones(3)}, tmp_path / "more.safetensors")
    save_file({**arrays, "layer 0.bias": np.ones(3)}, tmp_path / "shape.safetensors")
    with_head = rv.models.read_weights(model, tmp_path / "more.safetensors", new="layer 1", unused="head")
    first = model.init(jax.random.key(0))
    np.testing.assert_array_equal(with_head["layer 1"]["weight"], first["layer 1"]["weight"])
    np.testing.assert_array_equal(with_head["layer 0"]["weight"], weights["layer 0"]["weight"])
    with pytest.raises(rv.InputError, match="read_weights\\(unused='heads'\\) matches no weight"):
        rv.models.read_weights(model, tmp_path / "more.safetensors", unused="heads")
    arrays.pop("layer 1.bias")
    save_file(arrays, tmp_path / "less.safetensors")
    for name, message in (("more", "'head', which is no weight"), ("shape", "has the shape \\[3\\]"),
                          ("less", "no array 'layer 1.bias'"), ("absent", "cannot be read as a safetensors file")):
        with pytest.raises(rv.InputError, match=message):
            rv.models.read_weights(model, tmp_path / f"{name}.safetensors")


@pytest.mark.parametrize(("settings", "message"), [
    ({"layers": "attention.*"}, "matches no weight"), ({"layers": "layer 0.bias"}, "selects no matrix"),
    ({"rank": 8}, "smaller rank"), ({"rank": 0}, "at least 1"), ({"trained": "layer 0"}, "matches both"),
    ({"base": {"w": np.ones(3)}}, "not the parameters of the model")])
def test_what_cannot_be_adapted_is_refused(settings, message):
    with pytest.raises(rv.InputError, match=message):
        rv.models.lora(rv.models.mlp(12, 3, width=8), **{"rank": 2, "layers": "layer 0", **settings})


EXPERIMENT = """
data: {name: digits, parties: 2}
model: {name: lora, model: {name: mlp, width: 16}, rank: 4, layers: layer 0, trained: layer 1, base: BASE}
solver: {name: SGD, learning_rate: 0.1}
algorithms: [fedavg]
rounds: 1
"""


@pytest.mark.when_changed
def test_an_experiment_file_adapts_a_model_whose_weights_are_in_a_file(tmp_path):
    network = rv.models.mlp(64, 10, width=16)
    weights = network.init(jax.random.key(7))
    save_file({path: np.asarray(leaf) for path, leaf in tree.named_leaves(weights)}, tmp_path / "base.safetensors")
    text = EXPERIMENT.replace("BASE", str(tmp_path / "base.safetensors"))
    model = ExperimentFile.parse(text, "mine.yaml", "mine").build_model(rv.datasets.digits(parties=2))
    assert (model.adapted, model.trained) == (("layer 0.weight",), ("layer 1.bias", "layer 1.weight"))
    jax.tree.map(np.testing.assert_array_equal, model.weights(model.init(jax.random.key(0))), weights)
    with pytest.raises(InputError, match="linear does not fit the data"):
        ExperimentFile.parse(text.replace("{name: mlp, width: 16}", "linear"), "mine.yaml", "mine").build()


def test_a_lead_cannot_let_a_site_read_a_file():
    """Base weights from a path would tell whether a file exists at the site."""
    text = EXPERIMENT.replace("{name: digits, parties: 2}", "{label: ill}").replace("BASE", "/etc/base.safetensors")
    with pytest.raises(InputError, match=r":3: model.base: in a federation no participant reads a file"):
        experiment_from_text(text, "mine")
