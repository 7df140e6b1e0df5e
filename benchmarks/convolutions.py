"""Convolutions, products, attention, normalisation and pooling in a compiled loop on one core, here and in PyTorch.

    python benchmarks/convolutions.py [--only 3-D transposed ...] [--passes 2] [--out benchmarks/convolutions.json]
    python benchmarks/convolutions.py --plain        # also XLA's operation with nothing replaced (slow)
    python benchmarks/convolutions.py --forms [--out benchmarks/convolution_forms.json]    # other choices of a form
    python benchmarks/convolutions.py --report       # run nothing: table and picture of the page

PyTorch is needed in the same environment, but not for --report. Each operation (a convolution, its gradient by the
input and by the filter; other operations alone and with all gradients) is repeated in a loop, in float32; one entry of
each operand changes with each repetition, and operands and results are stored as a whole, in the order of their axes,
so that no compiler moves work out of the loop. The contestants alternate, each with one thread. ``us`` are microseconds
of CPU time of one operation, the smallest of the repeats, because other processes only add to it; ``speed`` is
PyTorch's time divided by ours, over 1 is faster. With several passes over the grid, the repeats of an operation are
minutes apart: on a machine that others share, some minutes are slow. ``error`` is the largest difference from PyTorch's
result, relative to its largest entry. ``load`` is the mean number of processes of the machine that wanted a core.

``--forms`` measures, for each convolution, all programs that other conditions on the shape would choose: without one of
the forms, or with a form where its condition excludes it. ``regret`` is the time of the chosen program divided by that
of the fastest. The file has a row for each operation and family of processors; a run replaces those of its own family.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from convolution_report import machine, report, summary_of_forms, summary_of_speeds
from records import ALLOCATOR, as_json

_SECONDS = 0.05  # of one measurement
_REWRITES = "xla_cpu_rewrites.convolutions"
# Other choices: names of constants, and their values.
_SETTINGS: dict[str, dict[str, Any]] = {
    "Winograd's products where they save 20": {"winograd._MIN_SAVED": 20},
    "Winograd's products where they save 45": {"winograd._MIN_SAVED": 45},
    "Winograd's products by filter where they save 30": {"winograd._MIN_SAVED_BY_FILTER": 30},
    "Winograd's products by filter where they save 60": {"winograd._MIN_SAVED_BY_FILTER": 60},
    "tiles of two outputs": {"winograd._OUTPUTS": 2, "winograd._TAPS": {3: 3}},
    "outputs joined up to 32 filters": {"few_filters._MIN_FILTERS": 32},
    "outputs joined in twos": {"few_filters.NEIGHBOURS": (1, 2)},
    "outputs joined in eights": {"few_filters.NEIGHBOURS": (1, 2, 4, 8)},
    "columns joined up to 9 features": {"few_filters._MAX_FEATURES": 9},
    "products of samples from 16 filters": {"positions._MIN_FILTERS": 16},
    "sums of up to 64 products": {"groups._MAX_TERMS": 64},
    "sums of up to 144 products": {"groups._MAX_TERMS": 144},
    "sums of 36 products in a loop": {"groups._TERMS_OF_LOOP": 36},
    "blocks of 4 features": {"groups._MIN_FEATURES": 4},
    "blocks of 16 features": {"groups._MIN_FEATURES": 16},
    "blocks of 32 features": {"groups._MIN_FEATURES": 32},
}
# Without these there is no program, or one in XLA's plain loops, which take 10 to 50 times as long.
_NEEDED = ("library", "batch_groups", "depth_as_features")


def main() -> None:
    """Measure, print, and write the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="families of operations")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--passes", type=int, default=1, help="number of passes over the grid, each with all repeats")
    parser.add_argument("--plain", action="store_true", help="also XLA's operation with nothing replaced")
    parser.add_argument("--forms", action="store_true", help="other choices of a form instead of PyTorch")
    parser.add_argument("--report", action="store_true", help="run nothing; write table and picture")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    if options.report:
        report()
        return
    if not ALLOCATOR.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR | {"PJRT_NPROC": "1"})
    import jax
    import torch

    from convolution_cases import grid, layers

    torch.set_num_threads(1)
    cases = [case for case in (*grid(), *(() if options.forms else layers()))
             if not options.only or case.family in options.only]
    passes: list[list[dict[str, Any]]] = []
    for _ in range(options.passes):
        passes.append([])
        for case in cases:
            for operation in case.operations():
                row = measure_forms(operation, options.repeats) if options.forms else measure(
                    operation, options.repeats, plain=options.plain)
                row = {"family": operation.family, "case": operation.case, "operation": operation.name, **row}
                passes[-1].append(row)
                print(json.dumps(row | ratios(row)), flush=True)
            jax.clear_caches()
    rows = [smallest(of_passes) for of_passes in zip(*passes, strict=True)]
    summary = (summary_of_forms if options.forms else summary_of_speeds)(rows)
    print(json.dumps(summary))
    if options.out:
        command = (f"python benchmarks/convolutions.py {'--forms ' * options.forms}--repeats {options.repeats} "
                   f"--passes {options.passes}")
        facts = {"command": command, "jax": jax.__version__, "torch": torch.__version__, "machine": machine(),
                 "load": round(os.getloadavg()[1], 1)}
        if options.forms:
            stored = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
            rows = [r for r in stored if r["machine"] != machine()] + [{"machine": machine(), **row} for row in rows]
            facts = {name: facts[name] for name in ("command", "jax")}
        options.out.write_text(as_json(facts | ({} if options.forms else summary), rows=rows))


def measure(operation: Any, repeats: int, *, plain: bool) -> dict[str, Any]:
    """Microseconds of CPU time of one operation, ours and PyTorch's, alternating."""
    import jax

    from xla_cpu_rewrites import rewrite

    results = jax.jit(rewrite(operation.ours))(*operation.operands)
    result, expected = np.asarray(jax.tree.leaves(results)[0]), operation.expected
    contestants = {"us": in_loop(rewrite(operation.ours), operation), "torch_us": operation.theirs}
    if plain:
        contestants["plain_us"] = in_loop(operation.ours, operation)
    return {"error": float(f"{np.abs(result - expected).max() / np.abs(expected).max():.1e}"),
            **race(contestants, repeats)}


def measure_forms(operation: Any, repeats: int) -> dict[str, Any]:
    """The same for the chosen program and for those of other choices that are not equal to it."""
    from xla_cpu_rewrites import rewrite

    contestants: dict[str, Callable[[int], None]] = {}
    programs: dict[str, str] = {}
    for name, choice in choices():
        with choice:
            run = in_loop(rewrite(operation.ours), operation)
            program = run.lower()
            if program not in programs:
                contestants[name], programs[program] = run, name
                run(2)
    others = race(contestants, repeats)
    return {"us": others.pop("chosen"), "others": others}


def ratios(row: dict[str, Any]) -> dict[str, Any]:
    """PyTorch's time divided by ours; or that of the chosen program divided by that of the fastest, and its name."""
    if "torch_us" in row:
        return {"speed": round(row["torch_us"] / row["us"], 3)}
    times = {"chosen": row["us"], **row["others"]}
    best = min(times, key=times.__getitem__)
    return {"regret": round(row["us"] / times[best], 3), "best": best}


def smallest(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The smallest times of an operation in several passes, and their ratios."""
    row = rows[0] | {name: min(r[name] for r in rows) for name in ("us", "torch_us", "plain_us") if name in rows[0]}
    if "others" in row:
        row["others"] = {name: min(r["others"][name] for r in rows) for name in row["others"]}
    return row | ratios(row)


def choices() -> Iterator[tuple[str, contextlib.AbstractContextManager[Any]]]:
    """Names of choices of a form, and what brings each about."""
    from xla_cpu_rewrites.convolutions.rule import FORMS

    yield "chosen", contextlib.nullcontext()
    for form in FORMS:
        if form.__name__ not in _NEEDED:
            yield f"without {form.__name__}", patch(f"{_REWRITES}.rule.FORMS", tuple(f for f in FORMS if f != form))
    for name, values in _SETTINGS.items():
        yield name, _patched(values)


@contextlib.contextmanager
def _patched(values: dict[str, Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for constant, value in values.items():
            stack.enter_context(patch(f"{_REWRITES}.{constant}", value))
        yield


def race(contestants: dict[str, Callable[[int], None]], repeats: int) -> dict[str, float]:
    """Microseconds of CPU time of one operation of each, the smallest of the repeats in alternation."""
    counts = {name: count(run) for name, run in contestants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            seconds[name].append(cpu_seconds(run, counts[name]) / counts[name])
    return {name: float(f"{1e6 * min(values):.4g}") for name, values in seconds.items()}


def in_loop(f: Callable[..., Any], operation: Any) -> Any:
    """A program that repeats the operation n times; an entry of each operand changes, in place."""
    import jax
    import jax.numpy as jnp

    from convolution_cases import TINY

    @jax.jit
    def repeated(n: Any, *operands: Any) -> Any:
        def step(_: Any, state: Any) -> Any:
            operands, shift, _ = state
            operands = jax.tree.map(lambda a: _row_major(a.at[(0,) * a.ndim].add(shift)), operands)
            results = jax.tree.map(_row_major, f(*operands))
            first = jax.tree.leaves(results)[0]
            return operands, TINY * first[(0,) * first.ndim], results  # of the last results, nothing more is read

        empty = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(f, *operands))
        return jax.lax.fori_loop(0, n, step, (operands, jnp.zeros(()), empty))[2]

    operands = jax.device_put(operation.operands)

    def run(n: int) -> None:
        jax.block_until_ready(repeated(n, *operands))

    run.lower = lambda: repeated.lower(2, *operands).as_text()  # type: ignore[attr-defined]
    return run


def _row_major(x: Any) -> Any:
    """The array in the order of axes that another program sees: XLA would permute its axes outside of the loop."""
    from jax.experimental.layout import Layout, with_layout_constraint

    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


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
