"""The programs of ``compile_sweep``, and the comparison of their two forms."""

import inspect
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import resolvent as rv
from resolvent.data.federated import FederatedData
from resolvent.problem.learning import LearningProblem
from resolvent.simulator.engine import compiled_rounds as engine
from resolvent.simulator.engine.cohorts import draw_cohorts
from resolvent.xla.fallback import FallbackJit
from xla_cpu_rewrites.small_call import allow_small_calls, call_metadata, repeat, small_call

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 0.02, "bfloat16": 0.1}
SAMPLES, PARTIES = 12, 2
PRECISIONS = ("float32", "float64", "bfloat16", "float16")  # of random programs


class Program(NamedTuple):
    """A compiled function with two forms, and its arguments; ``args`` makes new ones, because they are donated."""

    function: FallbackJit
    args: Callable[[], tuple]
    static: dict
    precision: str


def outcome(case):
    """The outcome of a case, with a message if it is wrong."""
    makers = {"models": model_program, "algorithms": algorithm_program, "operations": random_program}
    arguments = {name: value for name, value in case.items() if name != "grid"}
    precision = PRECISIONS[case["seed"] % 4] if "seed" in case else case.get("precision")
    with jax.enable_x64(precision == "float64"):
        try:
            return compare(makers[case["grid"]](**arguments))
        except Exception as error:
            return {"outcome": "error", "message": f"{type(error).__name__}: {error}"[:300]}


def compare(program):
    forms = [program.function.lower(*program.args(), plain=plain, **program.static) for plain in (True, False)]
    if forms[0].as_text() == forms[1].as_text():
        return {"outcome": "same"}
    plain = run(forms[0], program)
    try:
        special = run(forms[1], program)
    except jax.errors.JaxRuntimeError as error:
        return {"outcome": "refused", "message": str(error)[:300]}
    worst = max(map(distance, jax.tree.leaves(plain), jax.tree.leaves(special)), default=0.0)
    is_close = worst <= TOLERANCE[program.precision]
    return {"outcome": "agrees" if is_close else "differs", "distance": worst}


def run(lowered, program):
    return jax.tree.map(np.asarray, lowered.compile()(*program.args()))


def distance(a, b):
    """The largest difference, relative to the largest entry if that is above 1; NaNs must agree."""
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return 0.0 if np.array_equal(a, b) else np.inf
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return np.inf
    finite = np.isfinite(a)
    return float(np.max(np.abs(a - b), where=finite, initial=0) / np.max(np.abs(a), where=finite, initial=1))


def model_program(kind, features, classes, batch, precision):
    solver = rv.SGD(0.1, batch_size=batch, epochs=1)
    return rounds(rv.fedavg(solver), make_model(kind, features, classes), features, classes, precision)


def algorithm_program(preset, features=5000):
    solver = rv.SGD(0.1, batch_size=4, epochs=1)
    parts = {"solver": solver, "inner": rv.fedavg(solver), "attack": rv.attacks.NaN(),
             "aggregator": rv.aggregators.TrimmedMean(), "penalty": rv.penalties.SquaredL2()}
    make = getattr(rv, preset)
    needed = [name for name, parameter in inspect.signature(make).parameters.items()
              if parameter.default is parameter.empty or name == "solver"]
    algorithm = make(**{name: parts[name] for name in needed})
    return rounds(algorithm, rv.models.logistic(features, 2), features, 2, "float32")


def rounds(algorithm, model, features, classes, precision):
    rng = np.random.default_rng(0)
    data = FederatedData.from_arrays(
        [rng.normal(size=(SAMPLES, features)).astype(precision) / 10 for _ in range(PARTIES)],
        [np.arange(SAMPLES) % classes] * PARTIES, task="classification", classes=tuple(map(str, range(classes))))
    problem, participation = LearningProblem(model, data), rv.participation.Full()

    def args():
        cohorts = draw_cohorts(participation, problem.sizes, 0, 0, rounds=2, capacity=4)
        state = engine.initial_state(algorithm, problem, cohorts.shares, jnp.array(0))
        return algorithm, problem, cohorts, state, jnp.array(0), jnp.array(0), jnp.array(2)

    static = {"record": (), "scheduler": rv.schedulers.Sequential(), "mesh": None}
    return Program(engine.run_chunk, args, static, precision)


def make_model(kind, features, classes):
    import equinox as eqx
    import flax.linen as nn

    outputs, loss = (1, "binary_cross_entropy") if classes == 2 else (classes, "cross_entropy")
    if kind == "Equinox":
        return rv.models.from_equinox(lambda key: eqx.nn.Linear(features, outputs, key=key), loss=loss)
    if kind == "Flax":
        return rv.models.from_flax(nn.Dense(outputs), np.zeros((1, features)), loss=loss)
    if kind == "functions":
        return rv.models.from_functions(lambda key: jnp.zeros((outputs, features)),
                                        lambda w, x: jax.vmap(lambda row: w @ row)(x), loss=loss)
    return rv.models.logistic(features, classes)


def random_program(seed):
    """One to three random operations on a vector, as a step or as a loop of steps, in one of the forms that we use."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.choice([1, 600, 1024, 3000, 4096, 5000, 20_000])), int(rng.choice([1, 2, 6, 32]))
    precision = PRECISIONS[seed % 4]
    layers = [LAYERS[i] for i in rng.integers(len(LAYERS), size=rng.integers(1, 4))]
    counts, form = [int(rng.choice([1, 7, 100, 900])) for _ in layers], FORMS[rng.integers(len(FORMS))]

    def step(i, w, x):
        for layer, count in zip(layers, counts, strict=True):
            w = jnp.tanh(w + layer(i, w, x, min(count, n)))
        return w

    def program(w, x, *, plain):
        with call_metadata(not plain), allow_small_calls():
            return form(step, w, x)

    def args():
        values = np.random.default_rng(seed)
        return tuple(jnp.asarray(values.normal(size=shape) / n**0.5, precision) for shape in [(n,), (m, n)])

    return Program(FallbackJit(program), args, {}, precision)


LAYERS = [
    lambda i, w, x, k: x.T @ (x @ w),
    lambda i, w, x, k: x[0] * (x @ w)[0],
    lambda i, w, x, k: jnp.sum(x[:1] @ w) * w,
    lambda i, w, x, k: (x[:1].T @ (x[:1] @ w)),
    lambda i, w, x, k: (w[None] @ x.T[:, 0]) * w,
    lambda i, w, x, k: x[i % len(x)] * (x[i % len(x)] @ w),
    lambda i, w, x, k: w * jnp.dot(w[:k], x[0, :k]),
    lambda i, w, x, k: jax.grad(lambda v: jnp.sum(jnp.tanh(x @ v)))(w),
    lambda i, w, x, k: jax.grad(lambda v: jnp.sum(jnp.square(x[:1] @ v - 1)))(w),
    lambda i, w, x, k: jax.jvp(lambda v: x @ v, (w,), (w * w,))[1] @ x,
    lambda i, w, x, k: jax.vmap(lambda row: row @ w)(x) @ x,
    lambda i, w, x, k: jax.lax.dynamic_index_in_dim(x, i % len(x), keepdims=False),
    lambda i, w, x, k: jax.nn.softmax(w[:k])[0] + w,
    lambda i, w, x, k: jax.nn.logsumexp(w[:k]) - w,
    lambda i, w, x, k: jnp.max(w[:k]) * w + jnp.min(x[:, 0]),
    lambda i, w, x, k: jnp.where(jnp.any(w[:k] > 1), w, -w),
    lambda i, w, x, k: jnp.sum(x[:, :k], axis=1)[0] + jnp.sum(x[:, :k], axis=0)[0] + w,
    lambda i, w, x, k: jnp.concatenate([w[k:], w[:k]]),
    lambda i, w, x, k: jnp.stack([w, -w, w * w]).reshape(-1)[k:k + len(w)],
    lambda i, w, x, k: jnp.pad(w[:k], (0, len(w) - k)) + jnp.pad(w[k:], (k, 0)),
    lambda i, w, x, k: jnp.reshape(x.T, x.shape)[0],
    lambda i, w, x, k: jnp.transpose(jnp.reshape(x, (-1, len(x))))[0] + w,
    lambda i, w, x, k: jax.lax.dynamic_update_slice(w, w[:k] * 2, (i % len(w),)),
    lambda i, w, x, k: jnp.where(jnp.arange(len(w)) % 3 == i % 3, w, jnp.sqrt(jnp.abs(w))),
    lambda i, w, x, k: w * jnp.asarray(np.linspace(0, 1, len(w)), w.dtype),
    lambda i, w, x, k: jnp.stack([w] * 8)[i % 8] + jnp.pad(jnp.asarray(np.arange(k) % 7, w.dtype), (0, len(w) - k)),
    lambda i, w, x, k: jnp.exp(-w * w) + jnp.log1p(w * w) + jax.nn.sigmoid(w) + jnp.sign(w) + jnp.floor(3 * w) / 9,
    lambda i, w, x, k: jnp.sin(w) * jnp.cos(w) / (1 + w * w) + jnp.expm1(-w * w) + jax.lax.rsqrt(1 + w * w),
    lambda i, w, x, k: jnp.power(1 + jnp.abs(w), 0.3) + jnp.clip(w, -0.1, 0.1) + jnp.maximum(w, 0) + w**3,
    lambda i, w, x, k: jnp.outer(w[:k], x[:, 0])[0, 0] + w,
    lambda i, w, x, k: jnp.sum(jnp.stack([row @ w for row in x[:4]])) * w,
    lambda i, w, x, k: jnp.mean(jnp.square(w[:k])) * w + jnp.linalg.norm(x[0, :k]),
]

FORMS = [
    lambda step, w, x: small_call(lambda w, x: step(0, w, x))(w, x),
    lambda step, w, x: jax.lax.fori_loop(0, 3, lambda i, w: small_call(step)(i, w, x), w),
    lambda step, w, x: repeat(jnp.array(3), lambda i, w: step(i, w, x), w),
    lambda step, w, x: jax.lax.map(lambda row: repeat(jnp.array(3), lambda i, w: step(i, w, x), w + row), x[:2]),
    lambda step, w, x: repeat(jnp.array(2), lambda j, w: repeat(j + 1, lambda i, w: step(i, w, x), w), w),
    lambda step, w, x: jax.vmap(lambda row: small_call(lambda w: step(1, w, x))(w + row))(x[:2]),
]
