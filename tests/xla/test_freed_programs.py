"""Compiled programs are freed when no model can use them, and before a process has too many memory maps."""

import sys
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from resolvent.xla import compiled_programs


class Model(eqx.Module):
    apply: Callable = eqx.field(static=True)


MODEL = Model(jnp.sin)


@pytest.mark.parametrize("is_kept", [False, True])
def test_programs_of_models_that_are_gone_are_freed(is_kept, monkeypatch):
    """At the fourth model, three are gone. The programs of models that are in use stay."""
    call = jax.jit(lambda model, x: model.apply(x))
    monkeypatch.setattr(jax, "clear_caches", call.clear_cache)  # the programs of the other tests stay
    monkeypatch.setattr(compiled_programs, "_MAX_GONE", 2)
    monkeypatch.setattr(compiled_programs, "_models", {})
    monkeypatch.setitem(compiled_programs.remembered, "structure", "code")
    kept = []
    for number in range(8):
        model = Model(lambda x, number=number: x + number)
        kept += [model] if is_kept else []
        assert compiled_programs.free_programs_sometimes(model) == (not is_kept and number in (3, 6))
        assert call(model, 1.0) == 1 + number
    assert call._cache_size() == (8 if is_kept else 2)
    assert ("structure" in compiled_programs.remembered) == is_kept


def test_a_model_that_comes_again_is_not_gone(monkeypatch):
    monkeypatch.setattr(compiled_programs, "_MAX_GONE", 0)
    monkeypatch.setattr(compiled_programs, "_models", {})
    assert not any(compiled_programs.free_programs_sometimes(Model(jnp.cos)) for _ in range(3))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
@pytest.mark.parametrize(("limit", "is_freed"), [("10", True), ("1000000000", False), ("unlimited", False)])
def test_programs_are_freed_near_the_limit(limit, is_freed, tmp_path, monkeypatch):
    file = tmp_path / "max_map_count"
    file.write_text(limit)
    monkeypatch.setattr(compiled_programs, "_LIMIT", file)
    monkeypatch.setattr(compiled_programs, "_EVERY", 1)
    double = jax.jit(lambda x: 2 * x)
    # The programs of the other tests stay: they would compile again.
    monkeypatch.setattr(jax, "clear_caches", double.clear_cache)
    assert double(jnp.float32(1)) == 2
    assert compiled_programs.free_programs_sometimes(MODEL) is is_freed
    assert double._cache_size() == (0 if is_freed else 1)
    assert double(jnp.float32(1)) == 2


def test_a_system_without_the_file_has_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled_programs, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(compiled_programs, "_EVERY", 1)
    assert not compiled_programs.free_programs_sometimes(MODEL)


@pytest.mark.when_changed
def test_maps_are_counted_at_every_20th_call(monkeypatch):
    monkeypatch.setattr(compiled_programs, "_SHARE", 0.0)
    monkeypatch.setattr(jax, "clear_caches", lambda: None)
    freed = [compiled_programs.free_programs_sometimes(MODEL) for _ in range(40)]
    assert sum(freed) == (2 if sys.platform == "linux" else 0)
