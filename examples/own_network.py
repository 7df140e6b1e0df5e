"""Images with your own network

A network of Equinox, Flax or PyTorch becomes a model with one call. This one has dropout, which is on in training steps
only. The learning rate decreases over the rounds, and the run stops when validation does not improve. More:
[your model](data.md#your-model), [coming from PyTorch](coming-from.md),
[schedules and callbacks](experiments.md#schedules-callbacks-and-a-first-model).

Picture: the learning curve, with the spread over parties.
"""

# %%
import equinox as eqx
import jax
import numpy as np

import resolvent as rv

ROUNDS = 60

# %% [markdown]
# ## The images
#
# scikit-learn's handwritten digits, 8 x 8 pixels. Every party has two of the ten digits.

# %%
images = rv.datasets.digits(parties=1, classes_per_party=10, validation=0, test=0)
data = rv.partitions.divide(images.x.reshape(-1, 8, 8), images.y, rv.partitions.FixedClasses(parties=5, classes=2),
                            validation=0.2, test=0.3, name="digits")
data


# %% [markdown]
# ## The network
#
# An Equinox module maps one image to its outputs. The same with PyTorch: `rv.models.from_torch(Network)`.

# %%
class Network(eqx.Module):
    convolution: eqx.nn.Conv2d
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.convolution = eqx.nn.Conv2d(1, 8, 3, key=first)
        self.dropout = eqx.nn.Dropout(0.2)
        self.head = eqx.nn.Linear(8 * 6 * 6, 10, key=second)

    def __call__(self, image, key=None):
        hidden = jax.nn.relu(self.convolution(image[None]))
        return self.head(self.dropout(hidden.reshape(-1), key=key))


model = rv.models.from_equinox(Network)

# %% [markdown]
# ## The run

# %%
solver = rv.SGD(0.1, batch_size=20, epochs=1, schedule=rv.schedules.Cosine(rounds=ROUNDS))
result = rv.simulate(rv.fedavg_plus(solver), model, data, rounds=ROUNDS, name="FedAvg+",
                     on_evaluation=rv.callbacks.EarlyStopping(patience=6))
result

# %%
figure = result.plot()

# %% [markdown]
# ## Prediction

# %%
fitted = result.fitted("party 0")
rows, labels = data.party("party 0", "test")
np.mean(fitted.predict(rows).astype(int) == labels)


