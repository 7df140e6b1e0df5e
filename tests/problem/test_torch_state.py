"""PyTorch modules with buffers that training changes, with inputs by name, and with adapters."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import resolvent as rv

torch = pytest.importorskip("torch")
from safetensors.torch import save_file  # noqa: E402 - needs PyTorch

ROWS, STEPS, RATE = 12, 3, 0.1


class Normalised(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.body(x))))


class Named(torch.nn.Module):
    """As the modules of Hugging Face: inputs by name, a mask, and outputs in an object."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = torch.nn.Embedding(7, 8), torch.nn.Linear(8, 3)
        self.attention = torch.nn.ModuleDict({"query": torch.nn.Linear(8, 8), "value": torch.nn.Linear(8, 8)})

    def forward(self, input_ids, attention_mask):
        h = self.embedding(input_ids)
        scores = self.attention["query"](h) @ h.transpose(1, 2)
        weights = scores.masked_fill(attention_mask[:, None] == 0, -1e9).softmax(-1)
        return SimpleNamespace(logits=self.out((weights @ self.attention["value"](h))[:, 0]), hidden_states=h)


def data(parties=1):
    rng = np.random.default_rng(0)
    return rv.FederatedData.from_arrays([rng.normal(size=(ROWS, 4)) + k for k in range(parties)],
                                        [np.arange(ROWS) % 3] * parties, validation=0, test=0)


def sentences():
    rng = np.random.default_rng(1)
    x = {"input_ids": rng.integers(0, 7, (ROWS, 5)), "attention_mask": np.tile([1, 1, 1, 1, 0], (ROWS, 1))}
    return rv.FederatedData.from_arrays([x], [x["input_ids"][:, 0] % 3], validation=0, test=0)


def test_parameters_and_statistics_are_those_of_a_loop_in_pytorch():
    torch.manual_seed(0)
    module, samples = Normalised(), data()
    model = rv.models.from_torch(module)
    solver = rv.SGD(RATE, batch_size=ROWS, epochs=STEPS)
    result = rv.simulate(rv.fedavg(solver), model, samples, rounds=1, progress=False)
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    x, y = (torch.tensor(np.asarray(part)) for part in samples.party(0)[:2])
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x.float()), y.long()).backward()
        optimizer.step()
    trained = result.fitted("party 0").to_torch().state_dict()
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(trained[name], value, atol=2e-6, err_msg=name)
    assert trained["norm.num_batches_tracked"] == STEPS


def test_policies_put_the_statistics_where_they_say():
    model, samples = rv.models.from_torch(Normalised), data(2)
    results = {policy: rv.simulate(rv.combinators.ModelState(rv.fedavg(rv.SGD(RATE, batch_size=6, epochs=1)), policy),
                                   model, samples, rounds=2, progress=False)
               for policy in ("average", "private", "frozen")}
    means = {name: [result.fitted(f"party {k}").params.state["norm.running_mean"] for k in range(2)]
             for name, result in results.items()}
    np.testing.assert_array_equal(*means["average"])
    assert np.all(np.abs(means["private"][0] - means["private"][1]) > 1e-4)
    np.testing.assert_array_equal(means["frozen"][0], np.zeros(6))


def test_other_buffers_are_named():
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += self.training
            return self.linear(x)

    with pytest.raises(rv.InputError, match=r"changes its buffers calls.*from_torch\(state="):
        rv.simulate(rv.fedavg(rv.SGD(RATE)), rv.models.from_torch(Counts), data(), rounds=1, progress=False)
    with pytest.raises(rv.InputError, match="matches no buffer; there are"):
        rv.models.from_torch(Counts, state="call")
    model = rv.models.from_torch(Counts, state="calls")
    result = rv.simulate(rv.fedavg(rv.SGD(RATE, batch_size=4, epochs=2)), model, data(), rounds=2, progress=False)
    assert result.server_model.state["calls"] == 2 * 2 * ROWS / 4


def test_a_module_with_inputs_by_name_is_adapted_from_its_file(tmp_path):
    torch.manual_seed(3)
    source = Named()
    save_file(source.state_dict(), tmp_path / "model.safetensors")
    network = rv.models.from_torch(Named)
    model = rv.models.lora(network, rank=2, layers="attention.*", trained="out", alpha=2.0,
                           base=rv.models.read_weights(network, tmp_path / "model.safetensors"))
    samples = sentences()
    x = {name: jnp.asarray(part) for name, part in samples.party(0)[0].items()}
    named = {name: torch.tensor(np.asarray(part)) for name, part in x.items()}
    first = model.init(jax.random.key(0))
    np.testing.assert_allclose(model.apply(first, x), source(**named).logits.detach(), atol=1e-6)
    assert {*first} == {"attention.query.weight", "attention.value.weight", "out.weight", "out.bias"}
    result = rv.simulate(rv.fedavg(rv.SGD(0.2, batch_size=6, epochs=4)), model, samples, rounds=5, progress=False)
    losses = result.scores("train", metric="loss").mean(axis=1)
    assert losses.iloc[-1] < 0.8 * losses.iloc[0]
    logits = rv.models.torch_module(model, result.server_model)(**named).logits.detach()
    np.testing.assert_allclose(logits, model.apply(result.server_model, x), atol=1e-5)


def test_a_file_of_a_module_has_its_statistics(tmp_path):
    source = Normalised()
    source(torch.ones(5, 4) + torch.arange(20.0).reshape(5, 4))
    save_file(source.state_dict(), tmp_path / "model.safetensors")
    read = rv.models.read_weights(rv.models.from_torch(Normalised), tmp_path / "model.safetensors")
    np.testing.assert_array_equal(read.state["norm.running_mean"], source.norm.running_mean)
    assert read.state["norm.num_batches_tracked"] == 1
    adapted = rv.models.lora(rv.models.from_torch(Normalised), rank=2, layers="body", base=read)
    np.testing.assert_allclose(adapted.apply(adapted.init(jax.random.key(0)), jnp.ones((2, 4))),
                               source.eval()(torch.ones(2, 4)).detach(), atol=1e-6)
