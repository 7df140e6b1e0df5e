"""Operations that are slow in XLA's compiled loops on a CPU, replaced by equal ones in any function.

``rewrite`` makes weights the second factor of products (``weights``), computes cheap results of scans again instead of
storing them (``residuals``), moves sums of products out of scans (``scans``), carries channels-last layouts from one
operation to the next (``layouts``), stores the operands of products once (``operands``), and then replaces the
operations for which ``RULES`` has a faster form. The results are equal up to rounding, and all transformations of JAX
work on them: see ``deferred``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from resolvent.xla.rewrites.convolutions import convolution
from resolvent.xla.rewrites.deferred import Rule
from resolvent.xla.rewrites.pooling import select_and_gather, select_and_scatter, window_max, window_min, window_sum
from resolvent.xla.rewrites.proof import obstacle_to_rewriting
from resolvent.xla.rewrites.row_updates import update_rows
from resolvent.xla.rewrites.walk import Replacement, Rewriter
from resolvent.xla.versions import prove_rewrites_by

__all__ = ["RULES", "Replacement", "rewrite", "update_rows"]

RULES: dict[str, Rule] = {
    "conv_general_dilated": convolution,
    "reduce_window_max": window_max,
    "reduce_window_min": window_min,
    "reduce_window_sum": window_sum,
    "select_and_gather_add": select_and_gather,
    "select_and_scatter_add": select_and_scatter,
}

rewrite = Rewriter(RULES)


def _operations(f: Callable[..., Any], *args: Any) -> set[str]:
    return {item.operation for item in rewrite.replacements(f, *args)}


prove_rewrites_by(partial(obstacle_to_rewriting, rewrite, _operations))
