"""Pytrees of arrays as vectors.

In contrast to ``optax.tree``, operations keep the dtype of the vector (a float64 scalar does not widen a float32
model), and norms neither overflow nor have an undefined gradient at zero. Vectors may have half precision, but scalars
computed from them are at least float32: float16 overflows at 65,504, and bfloat16 has 2 to 3 digits.
"""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, PyTree

from resolvent.xla.rows import rows as rows

Vector: TypeAlias = PyTree[Array]


def dtype(x: Vector) -> Any:
    """The dtype of scalars that are computed from the vector: the common dtype of the leaves, at least float32."""
    leaves = jax.tree.leaves(x)
    return jnp.promote_types(jnp.result_type(*leaves), jnp.float32) if leaves else jnp.result_type(float)


def widen(x: Vector) -> Vector:
    """The vector with leaves of half precision in float32; other leaves are unchanged."""
    def of_leaf(leaf: Array) -> Array:
        return leaf.astype(dtype(leaf)) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    return jax.tree.map(of_leaf, x)


def cast(x: Vector, like: Vector) -> Vector:
    """``x`` in the dtypes of ``like``."""
    return jax.tree.map(lambda a, b: a.astype(b.dtype), x, like)


def map2(f: Callable[[Array, Array], Array], x: Vector, y: Vector) -> Vector:
    """Apply ``f`` leaf by leaf; the result has the dtypes of ``x``."""
    return jax.tree.map(lambda a, b: f(a, b).astype(a.dtype), x, y)


def axpy(a: ArrayLike, x: Vector, y: Vector) -> Vector:
    """``y + a*x``, in the dtypes of ``y``."""
    return map2(lambda v, u: jnp.add(v, jnp.multiply(a, u)), y, x)


def sub(x: Vector, y: Vector) -> Vector:
    """``x - y``, in the dtypes of ``x``."""
    return map2(lambda a, b: a - b, x, y)


def scale(a: ArrayLike, x: Vector) -> Vector:
    """``a*x``, in the dtypes of ``x``."""
    return jax.tree.map(lambda leaf: (a * leaf).astype(leaf.dtype), x)


def lerp(x: Vector, y: Vector, t: ArrayLike) -> Vector:
    """``(1 - t)*x + t*y``; exact at t = 0, and at t = 1 if 1 - t is exact."""
    return map2(lambda a, b: jnp.add((1 - t) * a, t * b), x, y)


def full_dot(x: Vector, y: Vector) -> Float[Array, ""]:
    """Inner product over all leaves."""
    parts = [jnp.sum(a * b) for a, b in zip(jax.tree.leaves(widen(x)), jax.tree.leaves(widen(y)), strict=True)]
    return jnp.sum(jnp.stack(parts)) if parts else jnp.zeros((), dtype(x))


def norm(x: Vector) -> Float[Array, ""]:
    """Euclidean norm over all leaves; its gradient is x/|x|, and 0 (a subgradient) at 0.

    Entries are scaled by the largest one, so that their squares neither overflow nor underflow.
    """
    leaves = [leaf for leaf in jax.tree.leaves(widen(x)) if leaf.size]
    if not leaves:
        return jnp.zeros((), dtype(x))
    largest = jax.lax.stop_gradient(jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves])))
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    total = jnp.sum(jnp.stack([jnp.sum(jnp.square(leaf / scale)) for leaf in leaves]))
    is_zero = total == 0
    return jnp.where(is_zero, 0, scale * jnp.sqrt(jnp.where(is_zero, 1, total)))


def finite(x: Vector) -> Array:
    """Whether every entry of every leaf is finite."""
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(x)]
    return jnp.all(jnp.array(leaves, bool))


def size_in_bytes(x: PyTree[Any]) -> int:
    """Number of bytes of all leaves together; shapes count as the arrays that they stand for."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(x))


def count_rows(x: PyTree[Any]) -> int:
    """n, the length of the leading axis that all leaves [n, ...] share; 0 if there is no leaf."""
    return next((len(leaf) for leaf in jax.tree.leaves(x)), 0)


def concatenate(trees: Sequence[PyTree[Any]]) -> PyTree[Any]:
    """Trees of NumPy arrays with the same structure, joined along the leading axis."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)


def column(mask: Array, like: Array) -> Array:
    """A mask [C], reshaped to broadcast against rows [C, ...]."""
    return mask.reshape((-1,) + (1,) * (like.ndim - 1))


def where(condition: Array, x: Vector, y: Vector) -> Vector:
    """``x`` where a condition holds, ``y`` elsewhere, in the dtypes of ``y``; a condition [C] is one of rows."""
    def of_leaf(a: Array, b: Array) -> Array:
        of_rows = column(condition, b) if jnp.ndim(condition) else condition
        return jnp.where(of_rows, a, b).astype(b.dtype)
    return jax.tree.map(of_leaf, x, y)


def stack(x: Vector, n: int) -> Vector:
    """``n`` stacked copies of a tree: leaves [n, ...]."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n, *jnp.shape(leaf))), x)


def ravel_rows(x: Vector) -> tuple[Vector, Callable[[Array], Vector]]:
    """Leaves [C, ...] of one dtype as one array [C, d], and the function that makes the tree of a row.

    A tree with several dtypes stays as it is.
    """
    if len({leaf.dtype for leaf in jax.tree.leaves(x)}) != 1:
        return x, lambda row: row
    restore: Callable[[Array], Vector] = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], x))[1]
    return jax.vmap(lambda row: ravel_pytree(row)[0])(x), restore


def parts(x: PyTree[Any], kind: type[Any]) -> list[Any]:
    """The parts of a kind, such as the local solvers of an algorithm; inside such a part no others are looked for."""
    return [part for part in jax.tree.leaves(x, is_leaf=lambda p: isinstance(p, kind)) if isinstance(part, kind)]


def map_parts(f: Callable[[Any], Any], x: PyTree[Any], kind: type[Any]) -> Any:
    """Apply ``f`` to each of the ``parts`` of a kind; all else is unchanged."""
    return jax.tree.map(lambda p: f(p) if isinstance(p, kind) else p, x, is_leaf=lambda p: isinstance(p, kind))


def strongly_typed(x: PyTree[Any]) -> PyTree[Any]:
    """Make weak types strong: a counter that begins at a Python 0 has another type after a round, which recompiles."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(jnp.asarray(leaf).dtype), x)


def named_leaves(x: PyTree[Array]) -> list[tuple[str, Array]]:
    """The leaves in the order of the tree, each with its path as text, for names in files and digests."""
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(x)]


def is_selected(layers: tuple[str, ...], path: str) -> bool:
    """Whether a leaf with this path matches one of the patterns."""
    return any(matches(pattern, path) for pattern in layers)


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern with the wildcards of ``fnmatch`` matches a path, or a prefix of it that ends at a dot.

    A pattern can have alternatives, such as ``norm*|bn*``.
    """
    return any(fnmatchcase(path, one) or fnmatchcase(path, f"{one}.*") for one in pattern.split("|"))
