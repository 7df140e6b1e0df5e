"""Convolutions and their gradients inside a compiled loop on one core, here and in PyTorch: a grid of shapes.

    python benchmarks/convolutions.py [--only 3-D transposed ...] [--repeats 5] [--out benchmarks/convolutions.json]
    python benchmarks/convolutions.py --plain        # also XLA's convolution with nothing replaced (slow)

PyTorch is needed in the same environment. Each operation (the convolution, its gradient by the input and by the filter)
is repeated in a loop, in float32; the filter, or for the gradient by the filter the gradient of the output, changes
with each repetition, so that no compiler moves the work out of the loop. Both sides alternate, with one thread.
``us`` are microseconds of CPU time of one operation, the smallest of the repeats, because other processes only add to
it; ``speed`` is PyTorch's time divided by ours, over 1 is faster. ``error`` is the largest difference from PyTorch's
result, relative to its largest entry.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")

import jax
import jax.numpy as jnp
import numpy as np
import torch

from resolvent.xla.rewrites import rewrite

# glibc otherwise returns large buffers to the system after each use: 9 to 27 % of PyTorch's time.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
_SECONDS = 0.05  # of one measurement
_TINY = 1e-30
OPERATIONS = ("forward", "by input", "by filter")


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


def grid() -> Iterator[Case]:
    """All cases."""
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


def main() -> None:
    """Measure, print, and write the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="families of shapes")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--plain", action="store_true", help="also XLA's convolution with nothing replaced")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    if not _ALLOCATOR.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | _ALLOCATOR)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for case in grid():
        if options.only and case.family not in options.only:
            continue
        for operation in OPERATIONS:
            rows.append(measure(case, operation, options.repeats, plain=options.plain))
            print("{family:10} {case:44} {operation:9} {us:9.1f} us, PyTorch {torch_us:9.1f}, speed {speed:5.2f}, "
                  "error {error:.0e}".format(**rows[-1]), f"plain {rows[-1]['plain_us']:.1f}" if options.plain else "",
                  flush=True)
        jax.clear_caches()
    speeds = np.array([row["speed"] for row in rows])
    summary = {"operations": len(rows), "geometric_mean": float(np.exp(np.log(speeds).mean())),
               "share_at_least_1": float((speeds >= 1).mean()), "slowest": float(speeds.min())}
    print(json.dumps(summary))
    if options.out:
        facts = {"command": f"python benchmarks/convolutions.py --repeats {options.repeats}", "jax": jax.__version__,
                 "torch": torch.__version__, **summary}
        options.out.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


def measure(case: Case, operation: str, repeats: int, *, plain: bool) -> dict[str, Any]:
    """Microseconds of CPU time of one operation, ours and PyTorch's, alternating."""
    random = np.random.default_rng(0)
    x = random.normal(size=(case.batch, *[case.size] * case.rank, case.features)).astype(np.float32)
    w = random.normal(size=case.filter_shape()).astype(np.float32)
    ours, constant, changing = jax_operation(case, operation, x, w, random)
    theirs, expected = torch_operation(case, operation, constant, changing, x.shape)
    result = np.asarray(jax.jit(lambda a, b: rewrite(ours)(a, b))(constant, changing))
    row: dict[str, Any] = {"family": case.family, "case": case.name, "operation": operation,
                           "error": float(np.abs(result - expected).max() / np.abs(expected).max())}
    contestants = {"us": in_loop(rewrite(ours), constant, changing), "torch_us": theirs}
    if plain:
        contestants["plain_us"] = in_loop(ours, constant, changing)
    counts = {name: count(run) for name, run in contestants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            seconds[name].append(cpu_seconds(run, counts[name]) / counts[name])
    row |= {name: 1e6 * min(values) for name, values in seconds.items()}
    return row | {"speed": row["torch_us"] / row["us"]}


def jax_operation(case: Case, operation: str, x: np.ndarray, w: np.ndarray,
                  random: np.random.Generator) -> tuple[Callable[[Any, Any], Any], np.ndarray, np.ndarray]:
    """The operation as a function of a constant and a changing operand, and the two operands."""
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

    if operation == "forward":
        return convolve, x, w
    g = random.normal(size=jax.eval_shape(convolve, x, w).shape).astype(np.float32)
    if operation == "by input":
        return lambda g, w: jax.linear_transpose(lambda x: convolve(x, w), like(x))(g)[0], g, w
    return lambda x, g: jax.linear_transpose(lambda w: convolve(x, w), like(w))(g)[0], x, g


def like(array: np.ndarray) -> jax.ShapeDtypeStruct:
    """The shape and the dtype of an array."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def in_loop(f: Callable[[Any, Any], Any], constant: np.ndarray, changing: np.ndarray) -> Callable[[int], None]:
    """A program that repeats the operation n times."""
    @jax.jit
    def run(n: Any, constant: Any, changing: Any) -> Any:
        def step(_: Any, shift: Any) -> Any:
            out = f(constant, changing + _TINY * shift)
            return out[(0,) * out.ndim]

        return jax.lax.fori_loop(0, n, step, jnp.zeros((), changing.dtype))

    operands = jax.device_put((constant, changing))
    return lambda n: jax.block_until_ready(run(n, *operands))


def torch_operation(case: Case, operation: str, constant: np.ndarray, changing: np.ndarray,
                    shape: tuple[int, ...]) -> tuple[Callable[[int], None], np.ndarray]:
    """A function that repeats the operation n times, and its result in the layout of ours."""
    spatial = list(range(1, case.rank + 1))

    def image(a: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(a, -1, 1)))

    def as_filter(a: np.ndarray) -> torch.Tensor:
        if case.transposed:  # PyTorch's filter [features, filters, *window] is that of the convolution, reversed
            a = np.flip(a, range(case.rank))
            return torch.from_numpy(np.ascontiguousarray(np.moveaxis(a, (-2, -1), (0, 1))))
        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(a, (-1, -2), (0, 1))))

    options = ([case.stride] * case.rank, [case.pad] * case.rank, [case.dilation] * case.rank, case.transposed,
               [0] * case.rank, case.groups)
    a = image(constant)
    b = image(changing) if operation == "by filter" else as_filter(changing)
    x_like = torch.empty(shape[0], shape[-1], *[shape[i] for i in spatial])
    w_like = as_filter(np.empty(case.filter_shape(), np.float32))
    backward = torch.ops.aten.convolution_backward

    def once(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if operation == "forward":
            return torch.convolution(a, b, None, *options)
        if operation == "by input":
            return backward(a, x_like, b, None, *options, (True, False, False))[0]
        return backward(b, a, w_like, None, *options, (False, True, False))[1]

    def run(n: int) -> None:
        with torch.no_grad():
            shift = torch.zeros(())
            for _ in range(n):
                shift = once(a, b + _TINY * shift).flatten()[0]

    out = once(a, b).numpy()
    if operation != "by filter":
        return run, np.moveaxis(out, 1, -1)
    if case.transposed:
        return run, np.flip(np.moveaxis(out, (0, 1), (-2, -1)), range(case.rank))
    return run, np.moveaxis(out, (0, 1), (-1, -2))


def count(run: Callable[[int], None]) -> int:
    """How often to repeat an operation in one measurement; the first call compiles."""
    run(2)
    return max(2, int(_SECONDS / max(cpu_seconds(run, 2) / 2, 1e-7)))


def cpu_seconds(run: Callable[[int], None], n: int) -> float:
    """CPU seconds of n operations."""
    begin = time.process_time()
    run(n)
    return time.process_time() - begin


if __name__ == "__main__":
    main()
