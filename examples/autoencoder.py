"""An autoencoder, without labels

The inputs are what the outputs are compared with: the loss is `reconstruction`, and data have no `y`. More:
[samples of any structure](data.md#samples-of-any-structure).

Picture: digits of the test rows above their reconstructions from 12 numbers.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv

images = rv.datasets.digits(parties=5, classes_per_party=3, validation=0, test=0)
data = rv.FederatedData.from_arrays([images.party(k)[0] for k in range(len(images))], name="digits without labels")


def init(key):
    a, b = jax.random.split(key)
    return {"encode": jax.random.normal(a, (64, 12)) / 8, "decode": jax.random.normal(b, (12, 64)) / 4,
            "bias": jnp.zeros(64)}


def apply(p, x):
    return jnp.tanh(x.reshape(len(x), 64) @ p["encode"]) @ p["decode"] + p["bias"]


model = rv.models.from_functions(init, apply, loss="reconstruction")
result = rv.simulate(rv.fedavg(rv.SGD(0.5, batch_size=20)), model, data, rounds=20)
error = result.scores("test").mean(axis=1)
print(error)
assert error.iloc[-1] < 0.6 * error.iloc[0]

digits = data.party(0, "test")[0][:8].reshape(-1, 64)
figure, axes = plt.subplots(2, 8, figsize=(6, 1.7), layout="constrained")
for column, (image, output) in enumerate(zip(digits, apply(result.server_model, digits), strict=True)):
    for row, pixels in enumerate((image, output)):
        axes[row, column].imshow(np.reshape(pixels, (8, 8)), cmap="gray_r", vmin=0, vmax=1)
        axes[row, column].set_axis_off()
