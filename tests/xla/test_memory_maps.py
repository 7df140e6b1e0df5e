"""Compiled programs are freed before a process has too many memory maps."""

import sys

import jax
import jax.numpy as jnp
import pytest

from resolvent.xla import memory_maps


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
@pytest.mark.parametrize(("limit", "is_freed"), [("10", True), ("1000000000", False), ("unlimited", False)])
def test_programs_are_freed_near_the_limit(limit, is_freed, tmp_path, monkeypatch):
    file = tmp_path / "max_map_count"
    file.write_text(limit)
    monkeypatch.setattr(memory_maps, "_LIMIT", file)
    monkeypatch.setattr(memory_maps, "_EVERY", 1)
    double = jax.jit(lambda x: 2 * x)
    # The programs of the other tests stay: they would compile again.
    monkeypatch.setattr(jax, "clear_caches", double.clear_cache)
    assert double(jnp.float32(1)) == 2
    assert memory_maps.free_programs_sometimes() is is_freed
    assert double._cache_size() == (0 if is_freed else 1)
    assert double(jnp.float32(1)) == 2


def test_a_system_without_the_file_has_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_maps, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(memory_maps, "_EVERY", 1)
    assert not memory_maps.free_programs_sometimes()


def test_maps_are_counted_at_every_20th_call(monkeypatch):
    monkeypatch.setattr(memory_maps, "_SHARE", 0.0)
    monkeypatch.setattr(jax, "clear_caches", lambda: None)
    freed = [memory_maps.free_programs_sometimes() for _ in range(40)]
    assert sum(freed) == (2 if sys.platform == "linux" else 0)
