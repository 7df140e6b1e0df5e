"""``rewrite``: its passes and its rules.

``rewrite`` rearranges the program of a function by ``PASSES``, and then replaces the operations for which ``RULES`` has
a faster form. The results are equal up to rounding, and all transformations of JAX work on them: see ``deferred``. A
new rearrangement is a ``Pass`` in a file of its own, a new operation a rule, and a new form of a convolution a function
in ``convolutions/``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from xla_cpu_rewrites.convolutions.rule import convolution
from xla_cpu_rewrites.deferred import Faster
from xla_cpu_rewrites.layouts import carry_layouts
from xla_cpu_rewrites.operands import prepare_operands, store_shared_operands
from xla_cpu_rewrites.passes import Pass
from xla_cpu_rewrites.pooling import select_and_gather, select_and_scatter, window_max, window_min, window_sum
from xla_cpu_rewrites.proof import obstacle_to_rewriting
from xla_cpu_rewrites.reductions import factor_sums, max_in_steps, min_in_steps, sum_in_steps
from xla_cpu_rewrites.residuals import recompute_residuals
from xla_cpu_rewrites.row_updates import add_to_rows
from xla_cpu_rewrites.scales import scale_small_arrays
from xla_cpu_rewrites.scans import sum_after_scans
from xla_cpu_rewrites.versions import prove_rewrites_by
from xla_cpu_rewrites.walk import Rewriter
from xla_cpu_rewrites.weights import orient_products

__all__ = ["PASSES", "RULES", "rewrite"]

PASSES: tuple[Pass, ...] = (orient_products, recompute_residuals, sum_after_scans, carry_layouts, factor_sums,
                            scale_small_arrays, prepare_operands, store_shared_operands)
_SLICES = "operations on slices"
_STEPS = "two reductions"
RULES: dict[str, Faster] = {
    "conv_general_dilated": Faster(convolution, "a library's convolution"),
    "reduce_max": Faster(max_in_steps, _STEPS),
    "reduce_min": Faster(min_in_steps, _STEPS),
    "reduce_sum": Faster(sum_in_steps, _STEPS),
    "reduce_window_max": Faster(window_max, _SLICES),
    "reduce_window_min": Faster(window_min, _SLICES),
    "reduce_window_sum": Faster(window_sum, _SLICES),
    "scatter-add": Faster(add_to_rows, "these rows only, in a step"),
    "select_and_gather_add": Faster(select_and_gather, _SLICES),
    "select_and_scatter_add": Faster(select_and_scatter, _SLICES),
}

rewrite = Rewriter(PASSES, RULES)


def _operations(f: Callable[..., Any], *args: Any) -> set[str]:
    return {item.operation for item in rewrite.replacements(f, *args)}


prove_rewrites_by(partial(obstacle_to_rewriting, rewrite, _operations))
