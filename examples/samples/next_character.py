"""The next character of lines of different length: padded with -1, which does not count, so the mask is the padding."""

import jax
import jax.numpy as jnp
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
print(result.scores("test").mean(axis=1))
