"""How much faster are the kernels than the textbook's operations? Steps of SGD in one compiled loop, on one core.

    python benchmarks/kernels.py [--out benchmarks/kernels.json]

Each row is a gradient step of a whole layer. Figures are CPU time, the minimum of the repeats; kernels alternate.
``share_of_sgemm`` is the speed relative to a large matrix product, measured in the same minutes; it counts only the
operations of the textbook's formula.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
import jax.numpy as jnp
import numpy as np
import optax

from resolvent.problem.models import networks
from resolvent.problem.models.losses import CrossEntropy
from xla_cpu_rewrites import kernels
from xla_cpu_rewrites.small_call import allow_small_calls

STEPS, REPEATS = 10, 7
MORE_STEPS = 100  # times more steps for a kernel whose step takes less time than the call of the compiled loop


def main() -> None:
    """Measure, print, and write the files that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    out = parser.parse_args().out
    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    steps = {"sgemm": STEPS}
    for name, (ours, theirs, shapes, _) in CASES.items():
        args = [jnp.asarray(np.random.default_rng(i).normal(size=s) / 10, jnp.float32) for i, s in enumerate(shapes)]
        steps[name] = STEPS * (MORE_STEPS if name.startswith("logistic") else 1)
        runs[name, "ours"], runs[name, "theirs"] = (_loop(f, args, steps[name]) for f in (ours, theirs))
    square = jnp.ones((768, 768))
    runs["sgemm", ""] = _loop(lambda a: a @ a, [square], STEPS, gradient=False)
    seconds = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()  # compile
    for _ in range(REPEATS):
        for key, run in runs.items():
            start = time.process_time()
            run()
            seconds[key] = min(seconds[key], (time.process_time() - start) / steps[key[0]])
    peak = 2 * 768**3 / seconds["sgemm", ""]
    rows = []
    for name, (_, _, _, flops) in CASES.items():
        ours, theirs = seconds[name, "ours"], seconds[name, "theirs"]
        rows.append({"kernel": name, "milliseconds": round(1e3 * ours, 4), "textbook": round(1e3 * theirs, 4),
                     "times_faster": round(theirs / ours, 2), "share_of_sgemm": round(flops / ours / peak, 3)})
        print(f"{name:32} {1e3 * ours:8.3f} ms, textbook {1e3 * theirs:8.3f} ms: {theirs / ours:5.2f} times faster, "
              f"{100 * flops / ours / peak:3.0f} % of sgemm")
    print(f"sgemm: {peak / 1e9:.0f} GFLOP/s")
    if out:
        facts = {"steps": STEPS, "repeats": REPEATS, "jax": jax.__version__, "sgemm_gflops": round(peak / 1e9, 1),
                 "device": jax.devices()[0].device_kind, "command": f"python benchmarks/kernels.py --out {out}"}
        out.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


def _loop(function: Callable[..., jax.Array], args: list[jax.Array], steps: int, *,
          gradient: bool = True) -> Callable[[], Any]:
    """Small gradient steps on a linear combination of the outputs, or plain calls, in one compiled loop."""
    direction = jax.random.normal(jax.random.key(0), jax.eval_shape(function, *args).shape)

    def step(_: Any, args: list[jax.Array]) -> list[jax.Array]:
        if not gradient:
            return [function(*args) * 1e-3]
        with allow_small_calls():  # as the engine does
            g = jax.grad(lambda args: jnp.vdot(function(*args), direction))(args)
        return jax.tree.map(lambda a, b: a - 1e-4 * b, args, g)  # type: ignore[no-any-return]

    compiled = jax.jit(lambda args: jax.lax.fori_loop(0, steps, step, args))
    return lambda: jax.block_until_ready(compiled(args))


def _primitive(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _im2col(x: jax.Array, weight: jax.Array) -> jax.Array:
    k, rows, columns = len(weight), x.shape[1] - len(weight) + 1, x.shape[2] - len(weight) + 1
    shifted = [x[:, a:a + rows, b:b + columns] for a in range(k) for b in range(k)]
    return jnp.concatenate(shifted, axis=-1) @ weight.reshape(-1, weight.shape[-1])


def _block(convolution: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda x, weight, bias: networks.max_pool(jax.nn.relu(convolution(x, weight) + bias))


def _lstm(x: jax.Array, inputs: jax.Array, state: jax.Array, bias: jax.Array) -> jax.Array:
    """With the gates' own functions and the automatic gradient of the scan; the inputs' product is hoisted out."""
    zeros = jnp.zeros((x.shape[1], len(state)))

    def step(carry: tuple[jax.Array, jax.Array],
             gate_inputs: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = carry
        i, f, g, o = jnp.split(gate_inputs + h @ state, 4, axis=-1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    states: jax.Array = jax.lax.scan(step, (zeros, zeros), x @ inputs + bias)[1]
    return states


def _logistic(loss: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    y = jnp.arange(10) % 10
    return lambda x, weight: loss(x @ weight.T, y)


def _convolution_flops(batch: int, rows: int, columns: int, inner: int, filters: int) -> int:
    return 3 * 2 * batch * rows * columns * inner * filters  # forward, and the gradients of both factors


# name: kernel, textbook, shapes, operations of a step with the gradients of all arguments
_FIRST, _SECOND = [(50, 28, 28, 1), (5, 5, 1, 10), (10,)], [(50, 12, 12, 10), (5, 5, 10, 20), (20,)]
_CIFAR = [(20, 14, 14, 64), (5, 5, 64, 64)]
_LAYER = [(80, 10, 100), (100, 400), (100, 400), (400,)]
CASES: dict[str, tuple[Callable[..., jax.Array], Callable[..., jax.Array], list[tuple[int, ...]], int]] = {
    "mnist_cnn block 1, im2col": (kernels.convolve_relu_pool, _block(_im2col), _FIRST,
                                  _convolution_flops(50, 24, 24, 25, 10)),
    "mnist_cnn block 2, im2col": (kernels.convolve_relu_pool, _block(_im2col), _SECOND,
                                  _convolution_flops(50, 8, 8, 250, 20)),
    "mnist_cnn block 2, primitive": (kernels.convolve_relu_pool, _block(_primitive), _SECOND,
                                     _convolution_flops(50, 8, 8, 250, 20)),
    "cifar_cnn convolution 2, im2col": (kernels.convolve, _im2col, _CIFAR, _convolution_flops(20, 10, 10, 1600, 64)),
    "char_lstm layer 2": (kernels.lstm, _lstm, _LAYER, 3 * 2 * 800 * 400 * 200),
    "logistic 784 x 10, batch 10": (
        _logistic(CrossEntropy().loss), _logistic(optax.losses.softmax_cross_entropy_with_integer_labels),
        [(10, 784), (10, 784)], 3 * 2 * 10 * 784 * 10),
}

if __name__ == "__main__":
    main()
