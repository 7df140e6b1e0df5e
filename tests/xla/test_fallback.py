"""The plain form runs where the compiler refuses the form with call metadata, and only there."""

import warnings

import jax
import jax.numpy as jnp
import pytest

from resolvent.xla.fallback import FallbackJit

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="for CPUs")


def fail_at_compiling(x):
    """XLA has no lowering of a call to an unknown C function, and says so when it compiles."""
    return jax.ffi.ffi_call("not_a_function", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def test_a_refused_program_runs_in_its_plain_form_with_one_warning():
    forms = []

    def double(x, *, plain):
        forms.append(plain)
        return 2 * x if plain else fail_at_compiling(x)

    run = FallbackJit(double, donate_argnames=("x",))
    with pytest.warns(UserWarning, match="the compiler refused the fast form"):
        assert run(jnp.ones(3)).tolist() == [2, 2, 2]
    with warnings.catch_warnings(action="error"):
        assert run(jnp.zeros(3)).tolist() == [0, 0, 0]
    assert forms == [False, True]
    with pytest.warns(UserWarning, match="the compiler refused"):
        run(jnp.ones(4))  # another program


def test_a_program_that_compiles_is_not_compiled_plainly():
    forms = []

    def double(x, *, plain):
        forms.append(plain)
        return 2 * x

    run = FallbackJit(double)
    run(jnp.ones(3))
    run(jnp.ones(3))
    assert forms == [False]
    assert run.cache_size() == 1


def test_the_error_of_a_program_that_no_form_compiles_is_raised():
    with pytest.raises(jax.errors.JaxRuntimeError, match="not_a_function"):
        FallbackJit(lambda x, *, plain: fail_at_compiling(x))(jnp.ones(3))


def test_an_error_of_a_running_program_is_raised():
    forms = []

    def fail(x, *, plain):
        forms.append(plain)
        return jax.pure_callback(lambda x: 1 / 0, jax.ShapeDtypeStruct((), x.dtype), x)

    with pytest.raises(Exception, match="division by zero"):
        jax.block_until_ready(FallbackJit(fail)(jnp.ones(())))
    assert forms == [False]
