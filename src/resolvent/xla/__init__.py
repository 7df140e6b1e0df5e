"""How the programs are arranged for XLA, above all for its CPU compiler. No other room knows XLA's habits.

This part imports nothing of the library. The package ``xla_cpu_rewrites`` has what other programs of JAX can use, too:
rewritten operations, kernels, small calls, and functions that read programs.

Each module is one technique. Its results are those of the textbook's JAX program up to rounding.

``fallback``
    ``FallbackJit`` compiles a function without call metadata where the compiler refuses it with call metadata.

``loops``
    Loops whose number of steps is known at run time only. Under ``vmap`` they can run as a queue, in which a lane that
    is done continues with the next loop. Fallback, without ``lane_queue``: ``jax.lax.while_loop``, whose lanes all run
    until the longest loop is done.

``shuffle``
    Permutations that are evaluated entry by entry, for a length that is known at run time only. On a CPU the rounds are
    a loop, on other devices they are unrolled.

``known_values``
    What is known of a program before it runs, up to operations that are marked.

``rows``, ``shapes``, ``compiled_programs``
    Rows of stacked arrays; shapes of results from stored traces; where compiled programs are kept, and until when.
"""
