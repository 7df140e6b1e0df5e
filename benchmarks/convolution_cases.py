"""The operations of benchmarks/convolutions.py: shapes, and each operation here and in PyTorch."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F

TINY = 1e-30
PASSES = ("forward", "by input", "by filter")


@dataclass(frozen=True)
class Operation:
    """One row of the table.

    Attributes:
        family: a name for tables.
        case: the shapes in a few words.
        name: which of the passes.
        ours: the operation.
        operands: its operands.
        theirs: PyTorch's operation, repeated n times.
        expected: PyTorch's result in the layout of ours.
    """

    family: str
    case: str
    name: str
    ours: Callable[..., Any]
    operands: tuple[np.ndarray, ...]
    theirs: Callable[[int], None]
    expected: np.ndarray


@dataclass(frozen=True)
class Case:
    """A convolution of a batch of 20, with "same" padding.

    Attributes:
        family: a name for tables.
        size: pixels along each spatial axis.
        features: of the input.
        filters: number of filters.
        window: size of the window along each spatial axis.
        rank: number of spatial axes.
        stride: of the windows; of a transposed convolution, that of the convolution of which it is the gradient.
        dilation: of the window.
        groups: number of groups of features.
        transposed: whether it is a transposed convolution.
        batch: number of samples.
    """

    family: str
    size: int
    features: int
    filters: int
    window: int = 3
    rank: int = 2
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    batch: int = 20

    @property
    def name(self) -> str:
        """The shape in a few words."""
        extras = [f"stride {self.stride}" * (self.stride > 1), f"dilation {self.dilation}" * (self.dilation > 1),
                  f"{self.groups} groups" * (self.groups > 1), "transposed" * self.transposed]
        size, window = ("x".join([str(n)] * self.rank) for n in (self.size, self.window))
        return ", ".join([f"{size}, {window}, {self.features} to {self.filters}", *filter(None, extras)])

    @property
    def pad(self) -> int:
        """Zeros on each side, in PyTorch's sense."""
        return self.dilation * (self.window - 1) // 2

    def filter_shape(self) -> tuple[int, ...]:
        """[*window, features / groups, filters]."""
        return (*[self.window] * self.rank, self.features // self.groups, self.filters)

    def operations(self) -> Iterator[Operation]:
        """The convolution, its gradient by the input, and its gradient by the filter."""
        for name in PASSES:
            random = np.random.default_rng(0)
            x = random.normal(size=(self.batch, *[self.size] * self.rank, self.features)).astype(np.float32)
            w = random.normal(size=self.filter_shape()).astype(np.float32)
            ours, *operands = _jax_convolution(self, name, x, w, random)
            theirs, expected = _torch_convolution(self, name, *operands, x.shape)
            yield Operation(self.family, self.name, name, ours, tuple(operands), theirs, expected)


def grid() -> Iterator[Case]:
    """All convolutions."""
    for window in (1, 3, 5, 7):
        for size, features, filters in ((32, 3, 16), (28, 1, 32), (16, 16, 32), (16, 32, 32), (8, 64, 64),
                                        (8, 128, 128)):
            if window < 7 or size > 8:
                yield Case("dense", size, features, filters, window)
    yield from (Case("dense", 64, 3, 32, window) for window in (3, 7))
    yield from (Case("strided", size, features, filters, window, stride=2)
                for size, features, filters, window in ((32, 3, 32, 3), (16, 32, 64, 3), (16, 32, 64, 1),
                                                        (8, 64, 128, 3)))
    yield from (Case("dilated", size, features, filters, dilation=2)
                for size, features, filters in ((32, 16, 16), (16, 32, 32), (8, 64, 64)))
    yield from (Case("grouped", 16, features, features, groups=groups)
                for features, groups in ((32, 2), (32, 4), (32, 8), (64, 8), (64, 16), (128, 32)))
    yield from (Case("depthwise", size, features, features, window, stride=stride, groups=features)
                for size, features, window, stride in ((32, 32, 3, 1), (16, 64, 3, 1), (16, 64, 3, 2), (8, 128, 3, 1),
                                                       (16, 64, 7, 1)))
    yield from (Case("transposed", size, features, filters, window, stride=2, transposed=True)
                for size, features, filters, window in ((8, 64, 32, 2), (16, 32, 16, 2), (8, 64, 32, 4),
                                                        (8, 64, 32, 3)))
    yield from (Case("1-D", size, features, filters, window, rank=1)
                for size, features, filters, window in ((128, 9, 64, 5), (64, 64, 64, 5), (128, 32, 32, 3),
                                                        (128, 128, 128, 3)))
    yield Case("1-D", 128, 32, 32, rank=1, dilation=4)
    yield Case("1-D", 64, 64, 32, 4, rank=1, stride=2, transposed=True)
    yield from (Case("3-D", size, features, filters, window, rank=3, stride=stride, batch=4)
                for size, features, filters, window, stride in ((16, 1, 8, 3, 1), (16, 8, 16, 3, 1), (8, 16, 32, 3, 1),
                                                                (8, 32, 32, 3, 1), (16, 8, 16, 3, 2),
                                                                (8, 32, 32, 1, 1)))
    yield Case("3-D", 8, 16, 8, 2, rank=3, stride=2, transposed=True, batch=4)


def _jax_convolution(case: Case, name: str, x: np.ndarray, w: np.ndarray,
                     random: np.random.Generator) -> tuple[Callable[[Any, Any], Any], np.ndarray, np.ndarray]:
    """The operation and its two operands."""
    spatial = "DHW"[3 - case.rank:]
    numbers = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")

    def convolve(x: Any, w: Any) -> Any:
        padding = [(case.pad, case.pad)] * case.rank
        if not case.transposed:
            return jax.lax.conv_general_dilated(x, w, [case.stride] * case.rank, padding, None,
                                                [case.dilation] * case.rank, numbers, case.groups)
        reach = case.window - 1 - case.pad
        return jax.lax.conv_general_dilated(x, w, [1] * case.rank, [(reach, reach)] * case.rank,
                                            [case.stride] * case.rank, None, numbers)

    if name == "forward":
        return convolve, x, w
    g = random.normal(size=jax.eval_shape(convolve, x, w).shape).astype(np.float32)
    if name == "by input":
        return lambda g, w: jax.linear_transpose(lambda x: convolve(x, w), _like(x))(g)[0], g, w
    return lambda x, g: jax.linear_transpose(lambda w: convolve(x, w), _like(w))(g)[0], x, g


def _like(array: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _torch_convolution(case: Case, name: str, first: np.ndarray, second: np.ndarray,
                       shape: tuple[int, ...]) -> tuple[Callable[[int], None], np.ndarray]:
    """A function that repeats the operation n times, and its result in the layout of ours."""
    spatial = list(range(1, case.rank + 1))

    def as_filter(a: np.ndarray) -> torch.Tensor:
        if case.transposed:  # PyTorch's filter [features, filters, *window] is that of the convolution, reversed
            a = np.flip(a, range(case.rank))
            return torch.from_numpy(np.ascontiguousarray(np.moveaxis(a, (-2, -1), (0, 1))))
        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(a, (-1, -2), (0, 1))))

    options = ([case.stride] * case.rank, [case.pad] * case.rank, [case.dilation] * case.rank, case.transposed,
               [0] * case.rank, case.groups)
    a = _channels_first(first)
    b = _channels_first(second) if name == "by filter" else as_filter(second)
    x_like = torch.empty(shape[0], shape[-1], *[shape[i] for i in spatial])
    w_like = as_filter(np.empty(case.filter_shape(), np.float32))
    backward = torch.ops.aten.convolution_backward

    def once(b: torch.Tensor) -> torch.Tensor:
        if name == "forward":
            return torch.convolution(a, b, None, *options)
        if name == "by input":
            return backward(a, x_like, b, None, *options, (True, False, False))[0]
        return backward(b, a, w_like, None, *options, (False, True, False))[1]

    out = once(b).numpy()
    if name != "by filter":
        out = np.moveaxis(out, 1, -1)
    elif case.transposed:
        out = np.flip(np.moveaxis(out, (0, 1), (-2, -1)), range(case.rank))
    else:
        out = np.moveaxis(out, (0, 1), (-1, -2))
    return _repeated(once, b), out


def _channels_first(a: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(a, -1, 1)))


def _repeated(once: Callable[[torch.Tensor], torch.Tensor], b: torch.Tensor) -> Callable[[int], None]:
    """The operation n times; an entry of an operand changes with each result, in place."""
    def run(n: int) -> None:
        operand, last = b.detach().clone(), torch.zeros(())
        for _ in range(n):
            operand.view(-1)[0].add_(last, alpha=TINY)
            last = once(operand).detach().flatten()[0]

    return run


@dataclass(frozen=True)
class Layer:
    """Another operation of a network: on an array with the features last, and on parameters of one axis or two.

    Attributes:
        family: a name for tables.
        name: the shape in a few words.
        shape: of the array.
        parameters: their shapes.
        ours: the function of the array and the parameters.
        theirs: PyTorch's; an image has its features first.
    """

    family: str
    name: str
    shape: tuple[int, ...]
    parameters: tuple[tuple[int, ...], ...]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]

    def operations(self) -> Iterator[Operation]:
        """The result; and the result and all gradients, as in a step of training."""
        random = np.random.default_rng(0)
        x, *parameters = (random.normal(size=s).astype(np.float32) for s in (self.shape, *self.parameters))
        g = random.normal(size=jax.eval_shape(self.ours, x, *parameters).shape).astype(np.float32)
        is_image = len(self.shape) == 4 and self.family != "attention"
        x_torch, g_torch = map(_channels_first if is_image else torch.from_numpy, (x, g))
        leaves = [torch.from_numpy(p).requires_grad_() for p in parameters]

        def forward(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return self.theirs(x, *leaves)

        def with_gradients(x: torch.Tensor) -> torch.Tensor:
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.theirs(x, *leaves), [x, *leaves], g_torch)[0]

        def gradients(g: Any, *operands: Any) -> Any:
            out, pull_back = jax.vjp(self.ours, *operands)
            return (*pull_back(g), out)

        for name, ours, operands, theirs in (
                ("forward", self.ours, (x, *parameters), forward),
                ("with gradients", gradients, (g, x, *parameters), with_gradients)):
            out = theirs(x_torch.clone()).detach().numpy()
            yield Operation(self.family, self.name, name, ours, operands, _repeated(theirs, x_torch),
                            np.moveaxis(out, 1, -1) if is_image else out)


def layers() -> Iterator[Layer]:
    """Products, attention, normalisation and pooling."""
    for rows, features, columns in ((20, 784, 200), (20, 256, 64), (1280, 64, 64), (1280, 64, 256), (1280, 256, 64)):
        yield Layer("product", f"{rows}x{features} by {features}x{columns}", (rows, features), ((features, columns),),
                    lambda x, w: x @ w, lambda x, w: x @ w)
    for heads, numbers in ((4, 16), (1, 64)):
        yield Layer("attention", f"64 tokens, {heads} x {numbers}", (20, heads, 64, 3 * numbers), (), _attention,
                    lambda x: F.scaled_dot_product_attention(*x.chunk(3, dim=-1)))
    image = (20, 32, 32, 16)
    yield Layer("normalisation", "layer, 1280x64", (1280, 64), ((64,), (64,)), _normalised((-1,)),
                lambda x, a, b: F.layer_norm(x, (64,), a, b))
    yield Layer("normalisation", "batch, 32x32x16", image, ((16,), (16,)), _normalised((0, 1, 2)),
                lambda x, a, b: F.batch_norm(x, None, None, a, b, training=True))
    yield Layer("normalisation", "4 groups, 32x32x16", image, ((16,), (16,)), _normalised((1, 2, 4), groups=4),
                lambda x, a, b: F.group_norm(x, 4, a, b))
    for reduce_, first, theirs, name in ((jax.lax.max, -math.inf, F.max_pool2d, "maximum"),
                                         (jax.lax.add, 0.0, F.avg_pool2d, "mean")):
        for window, stride in ((2, 2), (3, 2)):
            def pool(x: Any, reduce_: Any = reduce_, first: float = first, window: int = window,
                     stride: int = stride) -> Any:
                out = jax.lax.reduce_window(x, first, reduce_, (1, window, window, 1), (1, stride, stride, 1), "VALID")
                return out if first else out / window**2

            yield Layer("pooling", f"{name} of {window}x{window}, stride {stride}, 32x32x32", (20, 32, 32, 32), (),
                        pool, lambda x, theirs=theirs, window=window, stride=stride: theirs(x, window, stride))


def _attention(x: Any) -> Any:
    query, key, value = jnp.split(x, 3, axis=-1)
    scores = jnp.einsum("...qd,...kd->...qk", query, key) / math.sqrt(query.shape[-1])
    return jax.nn.softmax(scores, axis=-1) @ value


def _normalised(axes: tuple[int, ...], groups: int | None = None) -> Callable[[Any, Any, Any], Any]:
    """As in Flax: the variance is the mean of the squares minus the square of the mean."""
    def normalise(x: Any, scale: Any, shift: Any) -> Any:
        divided = x if groups is None else x.reshape(*x.shape[:-1], groups, -1)
        mean, squares = (jnp.mean(a, axes, keepdims=True) for a in (divided, divided * divided))
        if groups is not None:
            mean, squares = (jnp.repeat(a[..., 0], x.shape[-1] // groups, axis=-1) for a in (mean, squares))
        return (x - mean) * jax.lax.rsqrt(jnp.maximum(squares - mean * mean, 0) + 1e-5) * scale + shift

    return normalise
