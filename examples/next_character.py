"""The next character, with lines of different length

Lines are padded with -1. A token with the label -1 counts neither in the loss nor in the perplexity, so the mask is the
padding. More: [samples of any structure](data.md#samples-of-any-structure).

Picture: the perplexity of the next character falls at both parties.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv

LINES = {"anne": ["the sea is calm", "the sea is deep", "calm is the night"],
         "bert": ["rain", "the rain is cold", "cold is the rain tonight", "rain on the sea"]}
letters = sorted({c for lines in LINES.values() for line in lines for c in line})
sizes = [20, 30]

x, y = [], []
for lines, size in zip(LINES.values(), sizes, strict=True):
    codes = [[letters.index(c) for c in lines[i % len(lines)]] for i in range(size)]
    x.append(rv.datasets.pad_sequences([line[:-1] for line in codes], length=24)[0])
    y.append(rv.datasets.pad_sequences([line[1:] for line in codes], length=24, padding=-1)[0])
data = rv.FederatedData.from_arrays(x, y, parties=list(LINES), vocabulary=tuple(letters), classes=letters)

D = 24


def init(key):
    a, b, c = jax.random.split(key, 3)
    return {"embedding": 0.3 * jax.random.normal(a, (len(letters), D)),
            "gates": jax.random.normal(b, (2 * D, 4 * D)) / np.sqrt(2 * D), "bias": jnp.zeros(4 * D),
            "out": jax.random.normal(c, (D, len(letters))) / np.sqrt(D)}


def apply(p, tokens):
    def step(state, e):
        h, c = state
        i, f, o, g = jnp.split(jnp.concatenate([e, h], axis=-1) @ p["gates"] + p["bias"], 4, axis=-1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((len(tokens), D))
    hidden = jax.lax.scan(step, (zeros, zeros), p["embedding"][tokens].swapaxes(0, 1))[1]
    return hidden.swapaxes(0, 1) @ p["out"]  # logits [B, T, letters]


model = rv.models.from_functions(init, apply, loss="token_cross_entropy")
result = rv.simulate(rv.fedavg(rv.SGD(0.5, batch_size=5, epochs=2)), model, data, rounds=15,
                     metrics=[rv.metrics.Perplexity()])
accuracy = result.scores("test").mean(axis=1)
assert accuracy.iloc[-1] > accuracy.iloc[0]

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
rows = result.metrics.query("metric == 'perplexity' and split == 'test'")
axes.plot(rows.pivot(index="round", columns="party", values="value"), label=list(LINES))
axes.set(xlabel="round", ylabel="perplexity, test")
axes.legend()
