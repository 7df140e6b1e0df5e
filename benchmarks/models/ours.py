"""Resolvent on a model written by a user: ours.py MODEL SAMPLES ROUNDS DEVICES; prints JSON.

``ours.py MODEL --weights FILE`` writes the first parameters, in the order and the shapes of PyTorch's model.
"""

import json
import os
import sys

os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")

import equinox_models
import flax_models
import jax
import jax.extend
import numpy as np
from workload import BATCH, LEARNING_RATE, PARTIES, SHAPES, Meter, random_samples

import resolvent as rv
from resolvent.algorithms import keys
from resolvent.data.federated import consecutive_splits
from xla_cpu_rewrites.programs import inner_jaxprs


def model_of(name: str) -> rv.Model:
    """The model, with Flax, Equinox or, for logistic regression, built-in."""
    if name in flax_models.MODELS:
        return rv.models.from_flax(*flax_models.MODELS[name])
    if name in equinox_models.MODELS:
        return rv.models.from_equinox(equinox_models.MODELS[name],
                                      loss="token_cross_entropy" if name == "language" else "cross_entropy")
    return rv.models.logistic(SHAPES[name].shape[0], SHAPES[name].classes)


def federated_data(name: str, samples: int) -> rv.FederatedData:
    """The samples in parties of equal size, without test samples."""
    of = SHAPES[name]
    lengths = np.array([[samples // PARTIES], [0], [0]], np.int32).repeat(PARTIES, axis=1)
    return rv.FederatedData(
        *random_samples(name, samples), consecutive_splits(lengths), tuple(map(str, range(PARTIES))), "classification",
        tuple(map(str, range(of.classes))), vocabulary=tuple(map(str, range(of.tokens))))


def torch_parameters(name: str, params: object) -> list[np.ndarray]:
    """The parameters in the order of PyTorch's model; it reshapes biases of convolutions."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    if name in ("mlp", "logistic"):
        weights_first = [array for i in range(0, len(leaves), 2) for array in leaves[i:i + 2][::-1]]
        return [array.T for array in weights_first] if name == "mlp" else weights_first
    if name == "bag":
        bias, kernel, embedding = leaves
        return [embedding, kernel.T, bias]
    if name in ("gru", "lstm"):
        embedding, inputs, state, bias, *of_state, weight, output_bias = leaves
        # PyTorch has a second bias of all gates. Of the GRU, the part of the new state is the one that Equinox has.
        second = np.zeros_like(bias)
        if of_state:
            second[-len(of_state[0]):] = of_state[0]
        return [embedding, weight, output_bias, inputs, state, bias, second]
    if name in ("transformer", "language"):
        embedding, positions, *blocks, weight, bias = leaves
        arrays = [positions, embedding, weight, bias]
        for i in range(0, len(blocks), 12):
            query, key, value, output, *norms_and_layers = blocks[i:i + 12]
            arrays += [*norms_and_layers[:4], np.concatenate([query, key, value]), output, *norms_and_layers[4:]]
        return arrays
    return leaves


def product_flops(jaxpr: jax.extend.core.Jaxpr) -> float:
    """Floating-point operations of the matrix products and convolutions of a program."""
    total = 0.0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        size = sum(v.aval.size for v in equation.outvars)
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            total += 2.0 * size * np.prod([equation.invars[0].aval.shape[axis] for axis in contracted])
        elif name == "conv_general_dilated":
            filters = equation.invars[1].aval
            total += 2.0 * size * filters.size / filters.shape[params["dimension_numbers"].rhs_spec[0]]
        for inner in inner_jaxprs(equation):
            total += params.get("length", 1) * product_flops(inner)
    return total


def main() -> None:
    """Print the seconds of the rounds as JSON, or write the first parameters."""
    if sys.argv[2] == "--weights":
        first = model_of(sys.argv[1]).init(keys.initial_key(0))
        np.savez(sys.argv[3], *torch_parameters(sys.argv[1], first))
        return
    name, (samples, rounds, devices) = sys.argv[1], map(int, sys.argv[2:5])
    jax.config.update("jax_num_cpu_devices", devices)
    model, data = model_of(name), federated_data(name, samples)
    meter = Meter()

    def progress(done: int, _: int) -> None:
        if done == rounds:
            meter.restart()

    solver = rv.SGD(LEARNING_RATE, batch_size=BATCH, epochs=1)
    result = rv.simulate(rv.fedavg(solver), model, data, rounds=2 * rounds, evaluate_every=rounds, seed=0,
                         progress=progress)
    row = meter.row(samples * rounds, jax=jax.__version__, compile_seconds=result.facts["seconds"]["compile"])
    # Without the evaluation of the models, which the other contestants do not do.
    row |= {"us": 1e6 * result.facts["seconds_per_round"][-1] / samples,
            "us_cpu": 1e6 * result.facts["cpu_per_round"][-1] / samples}
    apply = jax.make_jaxpr(model.apply)(result.server_model, data.x[:1])
    row |= {key: float(np.mean(model.loss.loss(model.apply(params, data.x[:400]), data.y[:400])))
            for key, params in (("first_loss", model.init(keys.initial_key(0))), ("loss", result.server_model))}
    row |= {"flops": 3 * product_flops(apply.jaxpr)}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
