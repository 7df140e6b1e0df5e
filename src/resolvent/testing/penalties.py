"""The contract of penalties: a proximal operator that is optimal, and what is derived from it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from resolvent.math.penalties import Penalty
from resolvent.math.tree import Vector
from resolvent.testing.example import require

_STEPS = (0.01, 1.0, 30.0)


def check_penalty(penalty: Penalty, like: Vector | None = None) -> None:
    """Check that a penalty is convex and that its proximal operator is right, at random vectors in float64.

    No other point has a smaller value(theta) + |x - theta|^2 / (2 t) than prox(x, t); prox is firmly nonexpansive; prox
    and pull add up to x; the envelope is the value at prox plus |pull|^2 / (2 t), and its gradient is pull / t; the
    curvature majorises the envelope. float32 stays float32, and all of it can be compiled.

    Args:
        penalty: the penalty.
        like: a vector of the shapes that it is for; default: a dictionary of two layers.

    Raises:
        AssertionError: a property does not hold. The message says what was expected and what to do.

    Example:
        >>> check_penalty(rv.penalties.L2Norm())
    """
    name, rng = type(penalty).__name__, np.random.default_rng(0)
    with jax.enable_x64(True):
        shapes = {"body": jnp.zeros((2, 2)), "head": jnp.zeros(3)} if like is None else like
        flat, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), shapes))
        of_vector = jax.jit(lambda x, t: _operations(penalty, unravel(x), t))
        value = jax.jit(lambda x: penalty.value(unravel(x)))
        points = [rng.normal(size=flat.size) * scale for scale in (0.1, 1.0, 20.0)] + [np.zeros(flat.size)]
        for t in _STEPS:
            for x in points:
                _check_prox(name, of_vector, value, x, t, rng)
            _check_pairs(name, of_vector, points, t)
        _check_bounded_pull(penalty, name, of_vector, points[1])
    for operation in (penalty.prox, penalty.pull, penalty.curvature, penalty.envelope):
        _check_dtype(name, operation, shapes)


def _operations(penalty: Penalty, x: Vector, t: float) -> dict[str, Any]:
    prox, pull, curvature = penalty.prox(x, t), penalty.pull(x, t), penalty.curvature(x, t)
    envelope, gradient = jax.value_and_grad(lambda v: penalty.envelope(v, t))(x)
    flat = {"prox": prox, "pull": pull, "curvature": curvature, "gradient": gradient}
    return {key: ravel_pytree(value)[0] for key, value in flat.items()} | {
        "envelope": envelope, "at_prox": penalty.value(prox), "value": penalty.value(x)}


def _check_prox(name: str, of_vector: Any, value: Any, x: np.ndarray, t: float, rng: np.random.Generator) -> None:
    results = {key: np.asarray(leaf) for key, leaf in of_vector(x, t).items()}
    prox, pull, tolerance = results["prox"], results["pull"], 1e-9 * (1 + float(x @ x))
    require(bool(np.allclose(prox + pull, x, rtol=1e-9, atol=1e-9)),
            f"{name}: prox(x, {t}) and pull(x, {t}) do not add up to x: pull is x - prox, computed without cancelling")

    def objective(theta: np.ndarray) -> float:
        return float(value(theta)) + float((x - theta) @ (x - theta)) / (2 * t)

    minimum = objective(prox)
    others = [x, np.zeros_like(x), *(prox + s * rng.normal(size=x.size) for s in (1e-3, 0.1, 1.0)),
              *(prox + s * (x - prox) for s in (-0.1, 0.1)), *(prox * s for s in (0.9, 1.1))]
    require(np.isfinite(minimum) and all(minimum <= objective(other) + tolerance for other in others),
            f"{name}: prox(x, {t}) does not minimise value(theta) + |x - theta|^2 / (2 t): another point is lower. "
            "Correct prox or value")
    require(bool(np.isclose(results["envelope"], minimum, rtol=1e-9, atol=1e-9)),
            f"{name}: envelope(x, {t}) is not the minimum of value(theta) + |x - theta|^2 / (2 t)")
    require(bool(np.allclose(results["gradient"], pull / t, rtol=1e-6, atol=1e-8)),
            f"{name}: the gradient of envelope(x, {t}) is not pull / t")
    require(bool((results["curvature"] >= 0).all() and (results["curvature"] <= 1 + 1e-12).all()),
            f"{name}: curvature(x, {t}) is outside [0, 1]")


def _check_pairs(name: str, of_vector: Any, points: list[np.ndarray], t: float) -> None:
    """What holds for two points."""
    for x in points:
        for y in points:
            at_x, at_y = of_vector(x, t), of_vector(y, t)
            moved, distance = np.asarray(at_x["prox"] - at_y["prox"]), x - y
            slack = 1e-9 * (1 + float(distance @ distance))
            require(float(moved @ moved) <= float(moved @ distance) + slack,
                    f"{name}: prox(., {t}) is not firmly nonexpansive, |Px - Py|^2 <= <Px - Py, x - y>: the penalty "
                    "must be convex")
            bound = (float(at_x["envelope"]) + float(at_x["pull"] @ (y - x)) / t
                     + float(np.asarray(at_x["curvature"]) @ distance**2) / (2 * t))
            require(float(at_y["envelope"]) <= bound + slack,
                    f"{name}: the quadratic with curvature(x, {t}) / t that touches the envelope at x does not "
                    "majorise it: return ones, or larger numbers")
            middle = float(of_vector((x + y) / 2, t)["value"])
            require(middle <= (float(at_x["value"]) + float(at_y["value"])) / 2 + slack,
                    f"{name}: value is not convex")


def _check_bounded_pull(penalty: Penalty, name: str, of_vector: Any, x: np.ndarray) -> None:
    if penalty.has_bounded_pull:
        near, far = (float(np.linalg.norm(of_vector(x * scale, 1.0)["pull"])) for scale in (1e3, 1e6))
        require(far <= 2 * near + 1e-9, f"{name}: has_bounded_pull is True, but the pull grows with x: set it to False")


def _check_dtype(name: str, operation: Any, shapes: Vector) -> None:
    with jax.enable_x64(True):
        x = jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), jnp.float32), shapes)
        result = jax.eval_shape(lambda x: operation(x, 0.5), x)
    require({leaf.dtype for leaf in jax.tree.leaves(result)} <= {np.dtype(np.float32)},
            f"{name}.{operation.__name__} of a float32 vector is not float32: use resolvent.math.tree, which keeps the "
            "dtypes of the vector")
