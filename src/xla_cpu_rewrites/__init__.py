"""Operations that are slow in XLA's compiled loops on a CPU, replaced by equal ones in any function of JAX.

``rewrite(f)`` is ``f`` with its operations replaced: convolutions, pooling, their layouts, products of weights, and
sums over the steps of scans. ``update_rows(step)`` is a step of an optimization that changes only those rows of a table
that its minibatch has read. Results are equal up to rounding; README.md has an example and what is refused.

The modules below the rewrites can be used alone:

``kernels``
    Convolution, pooling and LSTM layers as matrix products with gradient rules of their own. There is no version
    condition: they are plain JAX.

``small_call``
    ``small_call`` and ``repeat`` compile a step, or a loop of steps, into one small function of machine code. XLA's CPU
    runtime otherwise starts each fused operation of a loop's body separately, which takes about 0.3 microseconds. They
    use the call metadata ``xla_cpu_small_call``. ``no_inline`` uses the metadata ``inlineable``, so that XLA computes
    and stores the results of a call instead of recomputing them for each use. Tested with JAX and jaxlib 0.10;
    ``versions`` has the condition. In other versions (with a warning), on other devices and with
    ``XLA_CPU_SMALL_CALLS=0`` they are a plain call and ``jax.lax.fori_loop``.

``programs``
    What all modules need to read and to evaluate programs (jaxprs): their equations, inner programs, and scans.
"""

from xla_cpu_rewrites.passes import Replacement
from xla_cpu_rewrites.row_updates import update_rows
from xla_cpu_rewrites.rules import rewrite

__all__ = ["Replacement", "rewrite", "update_rows"]
