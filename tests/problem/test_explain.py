"""Which operations of a user's network are replaced, and that a run with them is the run without."""

import equinox as eqx
import jax
import numpy as np
import pytest

import resolvent as rv


class Network(eqx.Module):
    convolution: eqx.nn.Conv2d
    pooling: eqx.nn.MaxPool2d
    output: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key)
        self.convolution = eqx.nn.Conv2d(1, 3, 3, padding=1, key=keys[0])
        self.pooling = eqx.nn.MaxPool2d(2, 2)
        self.output = eqx.nn.Linear(48, 10, key=keys[1])

    def __call__(self, x):
        return self.output(self.pooling(jax.nn.relu(self.convolution(x.reshape(1, 8, 8)))).reshape(-1))


@pytest.fixture(scope="module")
def data():
    return rv.datasets.digits(parties=3, seed=0)


def test_it_lists_the_operations_of_the_gradient(data):
    explanation = rv.explain(rv.models.from_equinox(Network), data, batch_size=7)
    assert explanation.is_enabled
    # The convolution, its gradients by the filter and (a sum) by the bias; images need no gradient.
    assert sorted(item.operation for item in explanation.replacements.elements()) == [
        "conv_general_dilated", "conv_general_dilated", "reduce_sum", "reduce_window_max", "select_and_scatter_add"]
    assert "select_and_scatter_add" in str(explanation)


def test_a_model_can_switch_it_off(data):
    model = rv.models.from_equinox(Network, replace_slow_operations=False)
    explanation = rv.explain(model, data)
    assert not explanation.is_enabled
    assert not explanation.replacements
    assert "switched off" in str(explanation)
    with pytest.raises(rv.InputError, match="batch_size=0"):
        rv.explain(model, data, batch_size=0)


def test_it_says_how_long_parties_wait_for_the_largest_one():
    sizes = (5, 10, 35)
    data = rv.FederatedData.from_arrays([np.ones((n, 4)) for n in sizes], [np.arange(n) % 2 for n in sizes],
                                        validation=0, test=0)
    explanation = rv.explain(rv.models.logistic(4, 2), data, batch_size=10)
    assert explanation.waiting == pytest.approx(1 - 2 / 4)  # 1, 1 and 4 minibatches, the mean is 2
    assert "50% of a round" in str(explanation)


@pytest.mark.nightly
def test_a_run_with_replaced_operations_is_the_run_without(data):
    results = [rv.simulate(rv.fedavg(rv.SGD(0.1, batch_size=10, epochs=1)),
                           rv.models.from_equinox(Network, replace_slow_operations=replaced), data, rounds=1,
                           progress=False)
               for replaced in (True, False)]
    losses = [result.metrics.query("metric == 'loss'")["value"] for result in results]
    np.testing.assert_allclose(*losses, rtol=1e-5)
