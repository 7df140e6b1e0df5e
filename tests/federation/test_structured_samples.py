"""Samples of any structure, objectives with a context and availabilities with a state, over encoded messages.

Every run equals that of ``simulate``: the shared model to the bit (MOON's up to the rounding of single precision,
because XLA fuses its cosines otherwise in a loop over parties), and the scores of all parties.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.federation.engines.in_process import run_in_process
from resolvent.problem.learning import LearningProblem

SOLVER = rv.SGD(0.1, batch_size=8, epochs=1)
SIZES, ROUNDS, SEED = (20, 11, 25), 3, 5


def mixed_inputs():
    """A dict with an image, a number and an integer; three labels that are yes or no."""
    rng = np.random.default_rng(0)
    x = [{"image": rng.normal(size=(n, 4, 4)), "age": rng.normal(size=n), "item": rng.integers(0, 5, n)} for n in SIZES]

    def init(key):
        return {"w": 0.1 * jax.random.normal(key, (16, 3)), "item": jnp.zeros((5, 3))}

    def apply(p, x):
        return x["image"].reshape(len(x["age"]), 16) @ p["w"] * x["age"][:, None] + p["item"][x["item"]]

    return (rv.models.from_functions(init, apply, loss="multi_label"),
            rv.FederatedData.from_arrays(x, [rng.integers(0, 2, (n, 3)) for n in SIZES]))


def masked_tokens():
    """Sequences of different length, padded with -1; outputs [B, T, letters]."""
    rng = np.random.default_rng(1)
    lines = [[rng.integers(0, 6, rng.integers(2, 9)).tolist() for _ in range(n)] for n in SIZES]
    x, y = ([rv.datasets.pad_sequences(of_party, length=8, padding=padding)[0] for of_party in lines]
            for padding in (0, -1))

    def init(key):
        return {"embedding": 0.1 * jax.random.normal(key, (6, 4)), "out": jnp.eye(4, 6)}

    return (rv.models.from_functions(init, lambda p, x: jnp.tanh(p["embedding"][x]) @ p["out"],
                                     loss="token_cross_entropy"),
            rv.FederatedData.from_arrays(x, y, vocabulary=tuple("abcdef"), classes=list("abcdef")))


def structures():
    """Inputs, outputs and labels that are dicts, with a loss of its own."""
    rng = np.random.default_rng(2)

    def apply(p, x):
        code = jnp.tanh(x["a"] @ p["in"] + x["b"][:, None])
        return {"kind": code @ p["kind"], "value": code @ p["value"]}

    def loss(outputs, y):
        return (outputs["value"] - y["value"]) ** 2 - jnp.take_along_axis(
            jax.nn.log_softmax(outputs["kind"]), y["kind"][:, None], axis=1)[:, 0]

    def init(key):
        return {"in": 0.1 * jax.random.normal(key, (6, 4)), "kind": jnp.eye(4, 3), "value": jnp.ones(4)}

    return (rv.models.from_functions(init, apply, loss=loss), rv.FederatedData.from_arrays(
        [{"a": rng.normal(size=(n, 6)), "b": rng.normal(size=n)} for n in SIZES],
        [{"kind": rng.integers(0, 3, n), "value": rng.normal(size=n)} for n in SIZES]))


def without_labels():
    """An autoencoder."""
    rng = np.random.default_rng(2)
    model = rv.models.from_functions(lambda key: {"in": 0.1 * jax.random.normal(key, (6, 2)), "out": jnp.ones((2, 6))},
                                     lambda p, x: jnp.tanh(x @ p["in"]) @ p["out"], loss="reconstruction")
    return model, rv.FederatedData.from_arrays([rng.normal(size=(n, 6)) for n in SIZES])


def classes():
    """Ten numbers and three classes, for a network with a hidden layer of eight units."""
    rng = np.random.default_rng(3)
    return (rv.models.mlp(10, 3, width=8),
            rv.FederatedData.from_arrays([rng.normal(size=(n, 10)) for n in SIZES],
                                         [np.arange(n) % 3 for n in SIZES]))


MARKOV = rv.participation.MarkovOnOff(0.6, 0.5)
CASES = {
    "structures, Markov, a table of server states": (structures, lambda: rv.mifa(SOLVER), MARKOV),
    "MOON, absent parties": (classes, lambda: rv.moon(SOLVER, mu=0.5), rv.participation.Uniform(2)),
    "several labels, compressed": (
        mixed_inputs, lambda: rv.combinators.Compressed(rv.fedavg(SOLVER), rv.codecs.TopK(0.3)), MARKOV),
    "a mask, day and night": (masked_tokens, lambda: rv.fedavg(SOLVER), rv.participation.DayNight(zones=3)),
    "no labels": (without_labels, lambda: rv.fedplus(SOLVER, rv.penalties.L2Norm(), sigma=0.1),
                  rv.participation.Full()),
    "private leaves": (structures, lambda: rv.combinators.PersonalLayers(rv.fedavg(SOLVER), ("kind",)), MARKOV),
    "FedNTD, outages": (classes, lambda: rv.fedntd(SOLVER, beta=0.3), rv.participation.Outages([0, 0, 1], 0.4, 0.5)),
    "FedProto": (classes, lambda: rv.fedproto(SOLVER, classes=3, features=8, lam=0.5), rv.participation.Full()),
    "FedBABU": (classes, lambda: rv.fedbabu(SOLVER, layers=("layer 1",)), rv.participation.Full()),
}


@pytest.mark.when_changed
@nightly.parametrize("name", CASES)
def test_a_federation_repeats_the_simulation(name):
    make, algorithm, participation = CASES[name]
    model, data = make()
    settings = {"rounds": ROUNDS, "seed": SEED, "participation": participation, "evaluate_every": ROUNDS}
    simulated = rv.simulate(algorithm(), model, data, progress=False, **settings)
    federated = run_in_process(algorithm(), LearningProblem(model, data), **settings)
    assert jax.tree.structure(simulated.server_model) == jax.tree.structure(federated.shared)
    rtol, atol = (1e-5, 1e-7) if name.startswith("MOON") else (0, 0)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=rtol, atol=atol), simulated.server_model, federated.shared)
    check_scores(simulated.metrics, federated.metrics)


def check_scores(simulated, federated):
    """The parties' scores after the last round are equal."""
    keys = ["round", "party", "split", "metric"]
    first, second = (m.query("metric != 'replies' and split.notna()").set_index(keys)["value"].sort_index()
                     for m in (simulated, federated))
    both = first.index.intersection(second.index)
    assert len(both) >= 2 * len(SIZES)
    np.testing.assert_allclose(first[both].to_numpy(float), second[both].to_numpy(float), rtol=1e-5)
