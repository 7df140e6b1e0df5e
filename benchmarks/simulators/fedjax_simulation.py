"""FedJAX: its own FedAvg and FedProx on Haiku models; one device: its jit backend, more: its pmap backend.

Its batches are filled up across the ends of epochs, so a party of n samples makes ceil(E n / B) steps, not
E ceil(n / B): a little less work than the others do.
"""

from importlib.metadata import version

from peer import Meter, Work, arguments

meter = Meter()

import fedjax  # noqa: E402
import haiku as hk  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

meter.mark("import")

_GATES = (0, 2, 1, 3)  # Haiku's LSTM has i, g, f, o, ours i, f, g, o


def forward(facts):
    """The model as a Haiku function of a batch."""
    if facts["model"] == "logistic":
        return lambda batch: hk.Linear(facts["classes"], name="layer")(batch["x"].reshape(len(batch["x"]), -1))
    if facts["model"] == "cnn":
        def cnn(batch):
            h = batch["x"][..., None]
            for i, channels in enumerate((10, 20)):
                h = jax.nn.relu(hk.Conv2D(channels, 5, padding="VALID", name=f"convolution_{i}")(h))
                h = hk.max_pool(h, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            h = jax.nn.relu(hk.Linear(20, name="layer_0")(h.reshape(len(h), -1)))
            return hk.Linear(facts["classes"], name="layer_1")(h)
        return cnn

    def lstm(batch):
        embedded = hk.Embed(facts["tokens"], 8, name="embedding")(jnp.transpose(batch["x"].astype(jnp.int32)))
        core = hk.DeepRNN([hk.LSTM(100, name="lstm_0"), hk.LSTM(100, name="lstm_1")])
        states, _ = hk.dynamic_unroll(core, embedded, core.initial_state(embedded.shape[1]))
        return hk.Linear(facts["classes"], name="output")(states[-1])
    return lstm


def theirs(first, facts):
    """Our parameters as Haiku's."""
    def affine(name, of):
        return {name: {"w": first[f"{of}weight"].T, "b": first[f"{of}bias"]}}

    if facts["model"] == "logistic":
        return affine("layer", "")
    if facts["model"] == "cnn":
        tree = affine("layer_0", "layer 0.") | affine("layer_1", "layer 1.")
        return tree | {f"convolution_{i}": {"w": first[f"convolution {i}.weight"], "b": first[f"convolution {i}.bias"]}
                        for i in (0, 1)}
    tree = {"embedding": {"embeddings": first["embedding"]}} | affine("output", "output.")
    for i in (0, 1):
        weight = np.concatenate([first[f"lstm {i}.input"], first[f"lstm {i}.state"]])
        tree[f"lstm_{i}/linear"] = {"w": _reordered(weight), "b": _reordered(first[f"lstm {i}.bias"])}
    return tree


def ours(params, facts):
    """Haiku's parameters as ours."""
    params = jax.tree_util.tree_map(np.asarray, params)

    def affine(name, of):
        return {f"{of}weight": params[name]["w"].T, f"{of}bias": params[name]["b"]}

    if facts["model"] == "logistic":
        return affine("layer", "")
    if facts["model"] == "cnn":
        tree = affine("layer_0", "layer 0.") | affine("layer_1", "layer 1.")
        return tree | {f"convolution {i}.{part}": params[f"convolution_{i}"][part[0]]
                        for i in (0, 1) for part in ("weight", "bias")}
    tree = {"embedding": params["embedding"]["embeddings"]} | affine("output", "output.")
    for i in (0, 1):
        linear = params[f"lstm_{i}/linear"]
        weight, inputs = _reordered(linear["w"]), len(linear["w"]) - 100
        tree |= {f"lstm {i}.input": weight[:inputs], f"lstm {i}.state": weight[inputs:],
                  f"lstm {i}.bias": _reordered(linear["b"])}
    return tree


def _reordered(gates):
    """The columns of i, f, g, o as those of i, g, f, o, or the other way round."""
    return np.concatenate([np.split(gates, 4, axis=-1)[g] for g in _GATES], axis=-1)


def main() -> None:
    args = arguments()
    work = Work(args.work)
    facts = work.facts
    parties = {k: dict(zip("xy", work.party(k), strict=True)) for k in range(len(work.length))}
    data = fedjax.InMemoryFederatedData(parties)
    model = fedjax.create_model_from_haiku(
        hk.transform(forward(facts)), {name: a[:1] for name, a in parties[0].items()},
        lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits))
    client, server = fedjax.optimizers.sgd(facts["learning_rate"]), fedjax.optimizers.sgd(1.0)
    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=facts["batch"], num_epochs=facts["epochs"])
    fedjax.set_for_each_client_backend("jit" if args.devices == 1 else "pmap")
    if facts["mu"]:
        algorithm = fedjax.algorithms.fed_prox.fed_prox(
            fedjax.model_per_example_loss(model), client, server, batches, facts["mu"])
    else:
        algorithm = fedjax.algorithms.fed_avg.federated_averaging(fedjax.model_grad(model), client, server, batches)
    np.random.seed(args.seed)  # noqa: NPY002 - of the batches
    state = algorithm.init(jax.tree_util.tree_map(jnp.asarray, theirs(work.first, facts)))
    key = jax.random.PRNGKey(args.seed)
    meter.mark("data")
    for t, cohort in enumerate(work.cohorts):
        keys = jax.random.split(jax.random.fold_in(key, t), len(cohort))
        clients = [(k, part, rng) for (k, part), rng in zip(data.get_clients(cohort.tolist()), keys, strict=True)]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        meter.round_done(t + 1, len(work.cohorts))
    meter.write(args.out, ours(state.params, facts), jax=jax.__version__, fedjax=version("fedjax"),
                devices=len(jax.devices()))


if __name__ == "__main__":
    main()
