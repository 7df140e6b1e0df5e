"""Segmentation with a small U-Net

Which pixels of a noisy image belong to the disc? Labels are images of class numbers; the loss of an image is the mean
over its pixels. Each party has images with another noise. More:
[samples of any structure](data.md#samples-of-any-structure).

Picture: a test image of each party, its label, and the predicted probability of the disc.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv

SIDE = 16


def images(n, noise, rng):
    center, radius = rng.uniform(4, 12, (n, 2, 1, 1)), rng.uniform(2, 4, (n, 1, 1))
    grid = np.indices((SIDE, SIDE))[None]
    inside = np.sum((grid - center) ** 2, axis=1) < radius**2
    return (inside + noise * rng.normal(size=inside.shape)).astype(np.float32)[..., None], inside.astype(np.int32)


parties = [images(40, noise, np.random.default_rng(k)) for k, noise in enumerate([0.3, 0.6, 0.9])]
data = rv.FederatedData.from_arrays(*zip(*parties, strict=True), classes=["background", "disc"])
SHAPES = {"down": (3, 3, 1, 8), "middle": (3, 3, 8, 16), "up": (3, 3, 24, 8), "out": (1, 1, 8, 2)}


def init(key):
    keys = jax.random.split(key, len(SHAPES))
    return {name: jax.random.normal(k, s) * np.sqrt(2 / np.prod(s[:3]))
            for (name, s), k in zip(SHAPES.items(), keys, strict=True)}


def convolve(x, w):
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def apply(p, x):
    fine = jax.nn.relu(convolve(x, p["down"]))
    coarse = fine.reshape(len(x), SIDE // 2, 2, SIDE // 2, 2, -1).mean(axis=(2, 4))
    coarse = jax.nn.relu(convolve(coarse, p["middle"]))
    large = coarse.repeat(2, axis=1).repeat(2, axis=2)
    return convolve(jax.nn.relu(convolve(jnp.concatenate([fine, large], axis=-1), p["up"])), p["out"])


model = rv.models.from_functions(init, apply, loss="token_cross_entropy")
result = rv.simulate(rv.fedavg(rv.SGD(0.1, batch_size=8)), model, data, rounds=10)
accuracy = result.scores("test").mean(axis=1)
assert accuracy.iloc[-1] > accuracy.iloc[0]

figure, axes = plt.subplots(3, 3, figsize=(4.2, 4.2), layout="constrained")
for row in range(3):
    x, y = (array[0] for array in data.party(row, "test"))
    probability = jax.nn.softmax(apply(result.server_model, x[None]))[0, ..., 1]
    for column, picture in enumerate((x[..., 0], y, probability)):
        axes[row, column].imshow(picture, cmap="gray_r")
        axes[row, column].set_axis_off()
