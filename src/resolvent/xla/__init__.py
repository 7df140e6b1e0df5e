"""How the programs are arranged for XLA, above all for its CPU compiler. No other room knows XLA's habits.

This part imports nothing of the library, so that it could be a package of its own.

Each module is one technique. Its results are those of the textbook's JAX program up to rounding. Where a technique
depends on the version of XLA, its paragraph says which versions were tested and what runs otherwise. The other
techniques are plain JAX and work in every supported version.

``small_call``
    ``small_call`` and ``repeat`` compile a step, or a loop of steps, into one small function of machine code. XLA's CPU
    runtime otherwise starts each fused operation of a loop's body separately, which takes about 0.3 microseconds. They
    use the call metadata ``xla_cpu_small_call``. ``no_inline`` uses the metadata ``inlineable``, so that XLA computes
    and stores the results of a call instead of recomputing them for each use. Tested with JAX and jaxlib 0.10;
    ``versions`` has the condition. Fallback, in other versions (with a warning), on other devices and with
    ``RESOLVENT_SMALL_CALLS=0``: a plain call and ``jax.lax.fori_loop``.

``programs``
    What all modules need to read and to evaluate programs (jaxprs): their equations, inner programs, and scans.

``fallback``
    ``FallbackJit`` compiles a function without call metadata where the compiler refuses it with call metadata.

``loops``
    Loops whose number of steps is known at run time only. Under ``vmap`` they can run as a queue, in which a lane that
    is done continues with the next loop. Fallback, without ``lane_queue``: ``jax.lax.while_loop``, whose lanes all run
    until the longest loop is done.

``kernels``
    Convolution, pooling, LSTM layers and the gradient of an affine model as matrix products with gradient rules of
    their own, because XLA's convolution and the automatic gradients of slices and scans are slow inside a loop on a
    CPU. Tested with JAX 0.10.2 against the textbook operations, values and gradients. There is no version condition.

``rewrites``
    Convolutions, pooling, their layouts and sums over the steps of scans, replaced in the program of any function.
    Plain JAX, tested with JAX 0.10; any other version compares a small network with its rewritten form at the first use
    (``rewrites.proof``). Fallback, where they differ and with ``RESOLVENT_REWRITES=0``: the function as it is.

``shuffle``
    Permutations that are evaluated entry by entry, for a length that is known at run time only. On a CPU the rounds are
    a loop, on other devices they are unrolled.
"""
