"""Wrong arguments for every public preset and part: each is accepted or refused with an error that names it.

The functions and classes are those that the public modules list in ``__all__``, and their parameters those of their
signatures, so that a new part is tested without an entry here. A case passes if the call returns, or if it raises an
`InputError` with a short message that has the name of the argument. Values that no number, choice or part can be must
be refused. Run all values for all arguments, and more random ones, with::

    python tests/comparisons/hostile_arguments.py --cases 5000 --seed 1
"""

import argparse
import inspect
import re
import sys
import traceback
import warnings
from functools import cache

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax

import resolvent as rv
from resolvent.algorithms import presets
from resolvent.arguments import hints_of
from resolvent.errors import InputError
from resolvent.problem.maps import GradientStep

MAX_MESSAGE_LENGTH = 1000
NAMESPACES = ("aggregators", "attacks", "codecs", "combinators", "datasets", "models", "participation", "partitions",
              "penalties", "presets", "problems", "schedulers", "schedules", "shifts", "solvers")
# Built by other functions only, by the library itself, or for a state of the library.
NOT_CALLED = {"Cohort", "Jobs", "Wire", "Subproblem", "Sharded", "distribute", "wire_bits", "Rows", "Labels", "divide",
              "from_frame", "traced_optimizer", "LearningProblem", "QuadraticProblem",
              "Quadratic", "check_ids", "SampleOracle", "Batch", "Context",
              # Arguments that belong together; modules of a library that is an extra.
              "from_consecutive", "from_dataset", "from_nnx", "from_torch", "read_weights", "torch_module",
              "AdaptedModel"}
NEEDS_FILES = {"cifar10", "emnist", "fashion_mnist", "leaf", "libsvm", "mnist", "sentiment", "shakespeare",
               "stackexchange", "table", "sentiment_lstm"}
SMALL = {"samples": 20, "features": 3, "parties": 4}


# Other ways to make an object of a public class.
CLASSMETHODS = {"FederatedData.from_arrays": rv.FederatedData.from_arrays}


class Unprintable:
    def __repr__(self):
        raise RuntimeError


class FakeModule:
    """With the two methods of a Flax module."""

    def init(self, key, batch):
        return {"params": jnp.zeros(2)}

    def apply(self, variables, batch):
        return batch @ variables["params"]


# What no number, choice or part can be.
IMPOSSIBLE = [float("nan"), float("-inf"), 10**400, 1j, object(), Unprintable(), rv.SGD, np.float32("inf"),
              np.array([1.0, np.nan]), np.array(["a"]), {1: 2}, {"a": "b"}, b"bytes", "\ud800", "x" * 10_000]
DOUBTFUL = [0, 1, -1, 0.5, -0.5, 2.5, 1e300, 2**31, 2**40, True, None, "", "x", "nan", [], (), {}, [1, 2],
            (0.5, "a"), (0, 1), [[1, [2]]], np.float64(0.5), np.int64(3), np.ones(3), jnp.ones(()), lambda x: x,
            rv.SGD(0.1, steps=1), rv.penalties.L1()]


@cache
def public_parts():
    """The public functions and concrete classes, by module and name."""
    parts = {}
    for namespace in NAMESPACES:
        module = presets if namespace == "presets" else getattr(rv, namespace)
        for name in module.__all__:
            part = getattr(module, name)
            is_callable = inspect.isfunction(part) or (inspect.isclass(part) and not inspect.isabstract(part))
            if is_callable and name not in NOT_CALLED and list(inspect.signature(part).parameters):
                parts[f"{namespace}.{name}"] = part
    return parts | CLASSMETHODS


@cache
def example_arguments(part):
    """Arguments that a part accepts: its required ones, and small sizes. Nobody changes them."""
    hints, arguments = hints_of(part), {}
    for name, parameter in inspect.signature(part).parameters.items():
        if parameter.default is inspect.Parameter.empty:
            arguments[name] = _example(name, str(hints[name]))
        elif name in SMALL and _makes_data(part):
            arguments[name] = SMALL[name]
        elif name == "solver":
            arguments[name] = _example(name, "")
    if part == rv.FederatedData.from_arrays:
        arguments |= {"x": [np.ones((4, 2)), np.zeros((3, 2))], "y": [np.array([0, 1, 0, 1]), np.array([1, 0, 1])]}
    if part is rv.shifts.OnInput:
        arguments["inner"] = rv.shifts.Negative(0.5)
    if part is rv.combinators.DecentralisedAnderson:
        arguments["inner"] = rv.splitting(rv.solvers.ClosedForm(), eta=0.1, decentralised=True)
    return arguments


def _makes_data(part):
    return part.__module__.endswith(("problems", "generators", "datasets"))


def _example(name, hint):
    by_name = {"penalty": rv.penalties.L1(), "aggregator": rv.aggregators.Mean(), "attack": rv.attacks.SignFlip(),
               "codec": rv.codecs.RandK(), "optimizer": "adam" if "str" in hint else optax.sgd(0.1),
               "inner": rv.fedavg(rv.SGD(0.1, steps=1)), "solver": rv.SGD(0.1, steps=1), "step": GradientStep(0.1),
               "others": (rv.fedavg(rv.SGD(0.1, steps=1)),),
               "layers": {"a": rv.penalties.L1()} if "Penalty" in hint else ("a",),
               "shape": (28, 28), "vocabulary": ("a", "b"), "classes": 3, "features": 4, "cohort": 2,
               "data": rv.datasets.fedprox_synthetic(parties=2), "init": lambda key: jnp.zeros(2),
               "apply": lambda w, x: x @ w, "make": lambda key: eqx.nn.Linear(2, 2, key=key), "module": FakeModule(),
               "model": rv.models.mlp(20, 12, width=16), "example": jnp.zeros((1, 2)), "sequences": [[1, 2], [3]],
               "function": lambda t, sizes: jnp.ones(sizes.shape),
               "loss": "cross_entropy", "l2": 0.0, "probability": 0.5, "schedule": rv.schedules.Constant(0.1)}
    if name == "inner" and "Aggregator" in hint:
        return rv.aggregators.Mean()
    if name in ("effort", "probability") and "Array, 'N'" in hint:
        return np.full(4, 0.5)
    return by_name.get(name, "no file" if hint == "<class 'str'>" else 0.1)


def check_argument(title, part, name, value):
    """The failure of one argument as text, or None."""
    if _makes_data(part) and isinstance(value, int) and 1000 < value < 2**31:
        return None  # these are no wrong sizes
    arguments = example_arguments(part)
    label = f"{title}({name}={_text(value)})"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            part(**arguments | {name: value})
    except InputError as error:
        message = str(error)
        if len(message) > MAX_MESSAGE_LENGTH or not message.isprintable():
            return f"{label}: a message of {len(message)} characters: {message[:200]!r}"
        if not re.search(rf"\b{name}\b", message) and part.__name__ not in NEEDS_FILES:
            return f"{label}: the message does not name the argument: {message}"
        return None
    except Exception:
        return f"{label}:\n{traceback.format_exc(limit=-4)}"
    if any(value is other for other in IMPOSSIBLE) and not _takes_anything(part, name):
        return f"{label}: accepted"
    return None


def _takes_anything(part, name):
    hint = str(hints_of(part).get(name, "Any"))
    return any(word in hint for word in ("Any", "Callable", "PyTree")) or hint == "<class 'str'>" or "str |" in hint


def _text(value):
    try:
        return repr(value)[:80]
    except RuntimeError:
        return "Unprintable()"


def run_all(values=(*IMPOSSIBLE, *DOUBTFUL)):
    """The failures of all values for all arguments of all public parts."""
    return [failure for title, part in public_parts().items() for name in inspect.signature(part).parameters
            for value in values if (failure := check_argument(title, part, name, value)) is not None]


def right_variants(value):
    """Values that mean the same: numbers of NumPy and of JAX."""
    if isinstance(value, bool):
        return [np.bool_(value)]
    if isinstance(value, int):
        return [np.int64(value), np.int32(value)]
    if isinstance(value, float) and np.isfinite(value):
        return [np.float64(value)]
    return []


def run_right():
    """The failures of right arguments: a default or an example, as a number of another library, must be accepted."""
    failures = []
    for title, part in public_parts().items():
        arguments, parameters = example_arguments(part), inspect.signature(part).parameters
        for name, parameter in parameters.items():
            for value in right_variants(arguments.get(name, parameter.default)):
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        part(**arguments | {name: value})
                except InputError as error:
                    if part.__name__ not in NEEDS_FILES:
                        failures.append(f"{title}({name}={value!r}) is right, and refused: {error}")
    return failures


def run_random(cases, seed):
    """The failures of random values for random arguments."""
    parts, failures = list(public_parts().items()), []
    for number in range(cases):
        rng = np.random.default_rng([seed, number])
        title, part = parts[rng.integers(len(parts))]
        names = list(inspect.signature(part).parameters)
        failure = check_argument(title, part, names[rng.integers(len(names))], _random_value(rng))
        if failure is not None:
            failures.append(f"seed {seed}, case {number}: {failure}")
    return failures


def _random_value(rng, depth=0):
    kind = rng.integers(8)
    values = (*IMPOSSIBLE, *DOUBTFUL)
    if kind == 0:
        return float(rng.normal() * 10.0 ** rng.integers(-30, 38))
    if kind == 1:
        return int(rng.integers(-50, 50))
    if kind == 2 and depth < 3:
        return [_random_value(rng, depth + 1) for _ in range(rng.integers(4))]
    if kind == 3 and depth < 3:
        return tuple(_random_value(rng, depth + 1) for _ in range(rng.integers(4)))
    if kind == 4 and depth < 3:
        return {str(k): _random_value(rng, depth + 1) for k in range(rng.integers(4))}
    return values[rng.integers(len(values))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="number of random cases, after the fixed ones")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    failures = run_all() + run_right() + run_random(arguments.cases, arguments.seed)
    print("\n".join(failures))
    print(f"arguments of {len(public_parts())} public parts: seed {arguments.seed}, {arguments.cases} random cases, "
          f"{len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
