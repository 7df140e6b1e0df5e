"""An error that Python or JAX raised in a user's function, as a message with the function and its line."""

import contextlib
import dataclasses
import site
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import jax

import xla_cpu_rewrites
from resolvent.errors import InputError, shorten

# Others, such as those of files, memory and other processes, are no mistakes in a function.
USER_ERRORS = (TypeError, ValueError, LookupError, AttributeError, NameError, ArithmeticError, AssertionError)

_ADVICE: MappingProxyType[type[Exception], str] = MappingProxyType({  # a subclass comes before its base class
    jax.errors.TracerBoolConversionError:
        "Python's if, while, and, or, not needs a value that is not known before the program runs: use jnp.where, "
        "jax.lax.cond or jnp.logical_and",
    jax.errors.TracerIntegerConversionError:
        "a Python integer is made from a value that is not known before the program runs: use jax.numpy, or a static "
        "field of the algorithm, eqx.field(static=True)",
    jax.errors.ConcretizationTypeError:
        "float(), int() or a shape needs a value that is not known before the program runs: use jax.numpy, or a static "
        "field of the algorithm, eqx.field(static=True)",
    jax.errors.TracerArrayConversionError:
        "NumPy needs values that are not known before the program runs: use jax.numpy",
    dataclasses.FrozenInstanceError:
        "an algorithm does not change: return what the next round needs as a part of the state",
    jax.errors.UnexpectedTracerError:
        "a value was stored outside of the function in which it was computed: return it in the state or the info",
})
_LIBRARIES = tuple(Path(folder).resolve() for folder in (
    str(Path(__file__).parents[1]), str(Path(xla_cpu_rewrites.__file__).parent), sysconfig.get_path("stdlib"),
    *site.getsitepackages(), site.getusersitepackages()))
# Folders of packages that another environment has: sys.path can name them, for instance by PYTHONPATH.
_NAMES_OF_PACKAGE_FOLDERS = frozenset(["site-packages", "dist-packages"])


@contextlib.contextmanager
def naming_errors(name: str) -> Iterator[None]:
    """Raise the errors of functions that are traced within as an ``InputError`` that begins with a name."""
    try:
        yield
    except USER_ERRORS as error:
        message = message_of(error)
        if message is None:
            if not isinstance(error, TypeError | ValueError | KeyError):
                raise
            message = str(error.args[0] if error.args else error)
        raise InputError(f"{name}: {message}") from error


def message_of(error: Exception) -> str | None:
    """The message of an error in a function that is not part of this library, with the line; None for other errors.

    An error of JAX about a value that is not known yet is replaced by the reason and what to do.
    """
    if isinstance(error, InputError):
        return None
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if is_of_user(frame.filename)]
    if not lines:
        return None
    advice = next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), None)
    reason = " ".join(f"{type(error).__name__}: {error}".split()) if advice is None else advice
    frame = lines[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}: in {frame.name}, `{shorten(frame.line)}`: {reason}"


def is_of_user(filename: str) -> bool:
    """Whether a source file is neither of this library, nor of Python, nor of an installed package."""
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    return not (any(path.is_relative_to(folder) for folder in _LIBRARIES)
                or not _NAMES_OF_PACKAGE_FOLDERS.isdisjoint(path.parts))
