"""Compiled functions that are compiled without call metadata where the compiler refuses a program with it."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import jax
from jax.stages import Lowered

Result = TypeVar("Result")


class FallbackJit(Generic[Result]):
    """``jax.jit`` of a function, with a second form for programs that the compiler refuses.

    The function is compiled with ``plain=False``. If that fails, it is compiled with ``plain=True``, a warning says so,
    and later calls of the same program use the second form at once. An error that both forms have, and an error of the
    running program, are raised unchanged. A program that compiles costs nothing more than with ``jax.jit``.
    """

    def __init__(self, function: Callable[..., Result], *, static_argnames: Sequence[str] = (),
                 donate_argnames: Sequence[str] = ()) -> None:
        """Prepare the compiled function.

        Args:
            function: any function that ``jax.jit`` compiles, with a keyword argument ``plain``.
            static_argnames: names of its other static arguments, all of them keywords.
            donate_argnames: names of the arguments whose buffers it takes over.
        """
        self.function = function
        self._jitted = jax.jit(function, static_argnames=(*static_argnames, "plain"), donate_argnames=donate_argnames)
        self._refused: set[Any] = set()
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **static: Any) -> Result:
        """The results of the function; keyword arguments are the static ones."""
        if self._refused and _signature(args, static) in self._refused:
            return self._plain(*args, **static)
        try:
            result: Result = self._jitted(*args, plain=False, **static)
        except jax.errors.JaxRuntimeError as error:
            if not self._is_refused(*args, **static):
                raise
            result = self._plain(*args, **static)
            warnings.warn(f"the compiler refused the fast form of a program ({_first_line(error)}); the plain form "
                          "runs, with the same results up to rounding. Please report this with the model and the "
                          "version of JAX", stacklevel=2)
            self._refused.add(_signature(args, static))
        return result

    def eval_shape(self, *args: Any, **static: Any) -> Any:
        """The shapes of the results. The trace is stored, so that a later call does not trace again."""
        is_plain = bool(self._refused) and _signature(args, static) in self._refused
        return self._jitted.eval_shape(*args, plain=is_plain, **static)  # type: ignore[no-untyped-call]

    def lower(self, *args: Any, plain: bool, **static: Any) -> Lowered:
        """The program for the compiler, in one of the two forms."""
        lowered: Lowered = self._jitted.lower(*args, plain=plain, **static)
        return lowered

    def cache_size(self) -> int:
        """The number of programs that were compiled, since ``jax.clear_caches()`` if it was called."""
        count: int = self._jitted._cache_size()  # type: ignore[attr-defined]
        return count

    def _plain(self, *args: Any, **static: Any) -> Result:
        result: Result = self._jitted(*args, plain=True, **static)
        return result

    def _is_refused(self, *args: Any, **static: Any) -> bool:
        """Whether compiling fails. JAX stores traces and compiled programs, so this compiles only after a failure."""
        try:
            self.lower(*args, plain=False, **static).compile()
        except jax.errors.JaxRuntimeError:
            return True
        return False


def _signature(args: tuple[Any, ...], static: dict[str, Any]) -> Any:
    """What a program is specialised to."""
    leaves, structure = jax.tree.flatten(args)
    return structure, tuple((jax.typeof(leaf).shape, jax.typeof(leaf).dtype) for leaf in leaves), frozenset(
        static.items())


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]
