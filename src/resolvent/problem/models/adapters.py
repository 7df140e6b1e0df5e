"""Low-rank adaptation (LoRA): a map from adapters to the weights of a model, whose base weights are constants."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.arguments import checked
from resolvent.errors import InputError, nearest, quote, shorten
from resolvent.math import tree
from resolvent.math.low_rank import Factors
from resolvent.math.tree import Vector
from resolvent.problem.models.model import Model
from resolvent.problem.models.stateful import ParamsAndState


class AdaptedModel(Model):
    """A model whose weights are W + scale B A, of constants W and trained factors.

    Parameters are a dict by path of the leaves that are trained: ``Factors`` of an adapter, or a leaf itself.

    Attributes:
        inner: the model of the weights.
        base: W, all weights of the model.
        fixed: path -> A, if only the factors B are trained; otherwise empty.
        scale: the factor of B A.
        rank: rank of the adapters.
        adapted: paths of the weights with an adapter.
        trained: paths of the weights that are trained themselves.
    """

    inner: Model
    base: Vector
    fixed: dict[str, Array]
    scale: ArrayLike
    rank: int = eqx.field(static=True)
    adapted: tuple[str, ...] = eqx.field(static=True)
    trained: tuple[str, ...] = eqx.field(static=True)

    @override
    def init(self, key: Array) -> Vector:
        """A from a normal distribution with variance 1 / columns, B = 0: the weights are those of the base."""
        leaves, params = dict(tree.named_leaves(self.base)), {}
        for i, path in enumerate(self.adapted):
            rows, columns = _matrix_shape(leaves[path])
            a = None if path in self.fixed else _draw(jax.random.fold_in(key, i), self.rank, columns)
            params[path] = Factors(a, jnp.zeros((rows, self.rank)))
        return params | {path: leaves[path] for path in self.trained}

    def weights(self, params: PyTree[Any]) -> Vector:
        """The weights of the inner model: the map of the adapters, with which it can be used without them."""
        def of_leaf(path: str, leaf: Array) -> Array:
            part = params.get(path)
            if part is None:
                return leaf
            if not isinstance(part, Factors):
                return part  # type: ignore[no-any-return]
            a = self.fixed[path] if part.A is None else part.A
            change: Array = jnp.asarray(self.scale) * (part.B @ a.astype(part.B.dtype))
            return leaf + change.astype(jnp.promote_types(leaf.dtype, part.B.dtype)).reshape(leaf.shape)

        return jax.tree.unflatten(jax.tree.structure(self.base),
                                  [of_leaf(path, leaf) for path, leaf in tree.named_leaves(self.base)])

    @override
    def apply(self, params: PyTree[Any], x: PyTree[Array]) -> PyTree[Array]:
        return self.inner.apply(self.weights(params), x)

    @override
    def apply_with_features(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> tuple[PyTree[Any], Array]:
        return self.inner.apply_with_features(self.weights(params), x)

    @override
    def batch_gradient(self, params: PyTree[Any], x: PyTree[Array], y: PyTree[Array], rows: Int[Array, " B"],
                       mask: Bool[Array, " B"]) -> Vector:
        """The gradient of the inner model at the weights, by the chain rule."""
        weights, pullback = jax.vjp(self.weights, params)
        gradient = replace(self.inner, loss=self.loss).batch_gradient(weights, x, y, rows, mask)
        of_params: Vector = pullback(gradient)[0]
        return of_params

    @property
    @override
    def has_random_layers(self) -> bool:
        return self.inner.has_random_layers

    @override
    def in_training(self, key: Array) -> "AdaptedModel":
        return replace(self, inner=self.inner.in_training(key))

    @override
    def rewritten(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return self.inner.rewritten(f)


@checked
def lora(model: Model, *, rank: int = 8, layers: str | tuple[str, ...] | list[str] = "*",
         base: str | Path | PyTree[Any] | None = None, alpha: float = 16.0, frozen_a: bool = False,
         trained: str | tuple[str, ...] | list[str] = (), l2: float = 0.0) -> AdaptedModel:
    """LoRA: the weights of a model plus products of two small matrices, which alone are trained.

    .. code-block:: text

        W + alpha/rank * B A,    A [rank, columns],  B [rows, rank],  first B = 0

    The adapters are the parameters: algorithms, codecs and aggregators see nothing else, messages and checkpoints
    contain nothing else, and a party stores nothing else. The base weights are constants of the model, which every
    party has before the run. A weight with more than two axes is a matrix of its first axis times the others.

    The mean of B_k A_k over parties is not mean(B_k) mean(A_k). With ``frozen_a=True`` (FFA-LoRA) A is drawn once and
    only B is trained, sent and averaged: its mean is exact, and the traffic is about half. With A and B trained,
    ``rv.aggregators.LowRankMean`` averages the products.

    Args:
        model: the model of the weights. The state of one that has a state stays that of the base.
        rank: rank of the adapters.
        layers: patterns of the paths of the weights that get an adapter, such as ``attention.*``, with the wildcards of
            ``fnmatch``; a prefix that ends at a dot selects all weights below it. Leaves with one axis, such as
            biases, get none.
        base: the base weights, or the safetensors file that ``read_weights`` reads; None: those that the model begins
            with for the key 0, which are its own for a module of PyTorch.
        alpha: the product of the adapters counts ``alpha / rank``.
        frozen_a: whether A is a constant.
        trained: patterns of the paths of weights that are trained themselves, such as those of a new last layer.
        l2: weight of |params|^2 / 2, of the adapters.

    Raises:
        InputError: a pattern matches no weight, the rank is not smaller than an axis of a matrix, or ``base`` does not
            fit the model.

    Example:
        >>> model = rv.models.lora(rv.models.mlp(64, 10, width=32), rank=4, layers="layer 0")
        >>> params = model.init(jax.random.key(0))
        >>> params["layer 0.weight"].A.shape, params["layer 0.weight"].B.shape
        ((4, 64), (32, 4))
        >>> jax.tree.map(jnp.shape, model.weights(params))["layer 0"]["weight"]
        (32, 64)

    References:
        Hu et al.: LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022; Sun, Li, Li, Ding: Improving LoRA in
        Privacy-preserving Federated Learning (FFA-LoRA), ICLR 2024.
    """
    if rank < 1:
        raise InputError(f"lora(rank={rank}) must be at least 1")
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    if base is None:
        base = model.init(jax.random.key(0))
    elif isinstance(base, str | Path):
        base = read_weights(model, base)
    else:
        _check_base(base, shapes)
    if isinstance(base, ParamsAndState):
        model, base = model.with_state(base.state), base.params
    leaves = dict(tree.named_leaves(base))
    adapted = tuple(path for path in _selected("lora(layers", layers, leaves) if leaves[path].ndim > 1)
    whole = _selected("lora(trained", trained, leaves)
    if twice := set(adapted) & set(whole):
        raise InputError(f"lora: {quote(min(twice))} matches both layers and trained: leave it out of one of them")
    if not adapted:
        raise InputError(f"lora(layers={quote(layers)}) selects no matrix; there are "
                         f"{shorten([path for path, leaf in leaves.items() if leaf.ndim > 1])}")
    for path in adapted:
        shape = _matrix_shape(leaves[path])
        if rank >= min(shape):
            raise InputError(f"lora(rank={rank}): {quote(path)} is a matrix {list(shape)}, whose adapter must have a "
                             "smaller rank: leave it out of layers, or set a smaller rank")
    fixed = {path: _draw(jax.random.fold_in(jax.random.key(0), i), rank, _matrix_shape(leaves[path])[1])
             for i, path in enumerate(adapted)} if frozen_a else {}
    return AdaptedModel(loss=model.loss, l2=l2, inner=model, base=jax.tree.map(jnp.asarray, base), fixed=fixed,
                        scale=alpha / rank, rank=rank, adapted=adapted, trained=whole)


@checked
def read_weights(model: Model, path: str | Path, *, new: str | Sequence[str] = (),
                 unused: str | Sequence[str] = ()) -> Vector:
    """The parameters of a model from a safetensors file whose arrays have the names of the model's weights.

    A name is a path, such as ``layer 0.weight``; of a PyTorch module it is that of its state dict, as in the files of
    Hugging Face. Buffers and frozen parameters of a PyTorch module are its own, and not read.

    Args:
        model: the model.
        path: the file.
        new: patterns of weights that the file does not have, such as those of a new last layer: they are those that
            the model begins with for the key 0.
        unused: patterns of arrays of the file that the model does not have.

    Raises:
        InputError: the file cannot be read, its names or shapes are not those of the model, or a pattern matches
            nothing.

    Example:
        >>> weights = rv.models.read_weights(model, "model.safetensors", new="classifier")  # doctest: +SKIP
    """
    from safetensors import SafetensorError
    from safetensors.flax import load_file

    try:
        arrays = load_file(str(path))
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{path} cannot be read as a safetensors file: {shorten(error)}") from error
    first = model.init(jax.random.key(0))
    parts = tuple(first) if isinstance(first, ParamsAndState) else (first,)
    expected = {name: leaf for part in parts for name, leaf in tree.named_leaves(part)}
    begun = {*_selected("read_weights(new", new, expected)}
    dropped = {*_selected("read_weights(unused", unused, arrays)}
    for name, leaf in expected.items():
        if name in begun:
            continue
        if name not in arrays:
            raise InputError(f"{path} has no array {quote(name)}, a weight of the model{nearest(name, arrays)}; it has "
                             f"{shorten([*arrays])}. If it is to begin anew, name it in new")
        if arrays[name].shape != leaf.shape:
            raise InputError(f"{path}: {quote(name)} has the shape {list(arrays[name].shape)}, and the weight of the "
                             f"model {list(leaf.shape)}: if it is to begin anew, name it in new")
    if others := set(arrays) - set(expected) - set(model.constant_names) - dropped:
        raise InputError(f"{path} has an array {quote(min(others))}, which is no weight of the model: name it in "
                         "unused")
    leaves = [leaf if name in begun else arrays[name].astype(leaf.dtype) for name, leaf in expected.items()]
    return jax.tree.unflatten(jax.tree.structure(first), leaves)


def _check_base(base: Any, shapes: Any) -> None:
    def of(values: Any) -> dict[str, tuple[int, ...]]:
        return {path: tuple(jnp.shape(leaf)) for path, leaf in tree.named_leaves(values)}

    of_base, expected = of(base), of(shapes)
    structure: Any = jax.tree.structure(base)
    if structure != jax.tree.structure(shapes) or of_base != expected:
        path = next(iter(sorted(name for name in of_base.keys() | expected.keys()
                                if of_base.get(name) != expected.get(name))), "the structure")
        raise InputError(f"lora(base=...) are not the parameters of the model: {path} is {of_base.get(path)} in base "
                         f"and {expected.get(path)} in the model")


def _selected(name: str, patterns: str | Sequence[str], leaves: dict[str, Array]) -> tuple[str, ...]:
    """The paths that match a pattern, after a check that every pattern matches one."""
    listed = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for pattern in listed:
        if not any(tree.matches(pattern, path) for path in leaves):
            raise InputError(f"{name}={quote(pattern)}) matches no weight{nearest(pattern, leaves)}; there are "
                             f"{shorten([*leaves])}")
    return tuple(path for path in leaves if tree.is_selected(listed, path))


def _matrix_shape(leaf: Array) -> tuple[int, int]:
    rows = leaf.shape[0]
    return rows, leaf.size // max(rows, 1)


def _draw(key: Array, rank: int, columns: int) -> Float[Array, "rank columns"]:
    return jax.random.normal(key, (rank, columns)) / jnp.sqrt(columns)
