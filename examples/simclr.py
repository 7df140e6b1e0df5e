"""SimCLR: similar views, no labels

Two augmented views of each digit are to be more similar than views of different digits. The loss of a sample depends on
the other samples of its minibatch. More: [samples of any structure](data.md#samples-of-any-structure).

Picture: digits and their nearest neighbours by the learned representation.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv

digits = rv.datasets.digits(parties=4, classes_per_party=5, validation=0, test=0)
data = rv.FederatedData.from_arrays([digits.party(k)[0].reshape(-1, 64) for k in range(len(digits))])


def augment(x, key):
    """Pixels are dropped, and brightness changes."""
    keep = jax.random.bernoulli(key, 0.7, x.shape)
    return x * keep * jax.random.uniform(key, (len(x), 1), minval=0.7, maxval=1.3)


def init(key):
    a, b = jax.random.split(key)
    return {"hidden": jax.random.normal(a, (64, 64)) / 8, "out": jax.random.normal(b, (64, 16)) / 8}


def apply(p, x, key):
    keys = jax.random.split(jax.random.key(0) if key is None else key)  # evaluations use fixed augmentations
    views = jnp.stack([augment(x, k) for k in keys], axis=1)
    return jax.nn.relu(views @ p["hidden"]) @ p["out"]  # [B, 2, 16]


model = rv.models.from_functions(init, apply, loss=rv.losses.NTXent(temperature=0.2), random_layers=True)
result = rv.simulate(rv.fedavg(rv.SGD(0.3, batch_size=32)), model, data, rounds=15, metrics=[rv.metrics.RecallAtK(5)])

embed = np.asarray(jax.nn.relu(digits.x.reshape(-1, 64) @ result.server_model["hidden"]))
unit = embed / np.maximum(np.linalg.norm(embed, axis=1, keepdims=True), 1e-9)
similar = unit @ unit.T - 2 * np.eye(len(unit))

found = np.mean(digits.y[similar.argmax(axis=1)] == digits.y)
print("nearest neighbour has the same digit:", found)
assert found > 0.9

figure, axes = plt.subplots(2, 8, figsize=(6, 1.7), layout="constrained")
for column, k in enumerate(range(0, 1600, 200)):
    for row, number in enumerate((k, similar[k].argmax())):
        axes[row, column].imshow(digits.x[number].reshape(8, 8), cmap="gray_r")
        axes[row, column].set_axis_off()
