"""Compiled programs are stored for later processes."""

import os
import subprocess
import sys

import jax
import pytest

from resolvent.xla import compiled_programs as cache

RUN = """
import jax.numpy as jnp, resolvent as rv
problem = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(2)] * 3), jnp.ones((3, 2)))
jnp.ones(3).sum()  # compiles a program before the cache is enabled
rv.simulate(rv.fedavg(rv.solvers.GD(0.1)), problem, rounds=2, progress=False)
"""
SETTINGS = ("jax_compilation_cache_dir", "jax_enable_compilation_cache", "jax_compilation_cache_max_size",
            "jax_persistent_cache_min_compile_time_secs", "jax_persistent_cache_min_entry_size_bytes")


def run(**environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XDG_"))}
    subprocess.run([sys.executable, "-c", RUN], env=clean | environment, capture_output=True, text=True, check=True)


def stored(folder):
    """The stored programs of rounds; whether a small program is stored depends on the time that it took to compile."""
    return sorted(p.name for p in folder.rglob("*run_chunk*-cache"))


@pytest.mark.nightly
def test_second_process_compiles_no_rounds(tmp_path):
    run(XDG_CACHE_HOME=str(tmp_path))
    first = stored(tmp_path / "resolvent" / "xla")
    assert first
    run(XDG_CACHE_HOME=str(tmp_path))
    assert stored(tmp_path / "resolvent" / "xla") == first


@pytest.fixture
def user_settings(tmp_path, monkeypatch):
    """Changes JAX's settings until the end of the test; the user's cache folder is a temporary one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = {name: jax.config.values[name] for name in SETTINGS}

    def update(**settings):
        for name, value in settings.items():
            jax.config.update(name, value)

    yield update
    update(**before)


@pytest.mark.parametrize("settings", [
    {"jax_enable_compilation_cache": True, "jax_compilation_cache_dir": "mine"},
    {"jax_enable_compilation_cache": False, "jax_compilation_cache_dir": None},
], ids=["another folder", "no cache"])
def test_settings_of_the_user_are_respected(tmp_path, user_settings, settings):
    user_settings(**settings)
    cache.enable_compilation_cache()
    assert not (tmp_path / "resolvent").exists()
    assert {name: jax.config.values[name] for name in settings} == settings


def test_folder_of_the_user_stores_programs_that_compile_fast(user_settings, monkeypatch):
    seconds, size = SETTINGS[3:]
    user_settings(**{"jax_enable_compilation_cache": True, "jax_compilation_cache_dir": "mine", seconds: 1.0, size: 7})
    cache.enable_compilation_cache()
    assert 0 < jax.config.values[seconds] < 0.1
    assert jax.config.values[size] == 7, "not JAX's default, so the user has set it"
    user_settings(**{seconds: 1.0})
    monkeypatch.setenv(seconds.upper(), "1.0")
    cache.enable_compilation_cache()
    assert jax.config.values[seconds] == 1.0


def test_folder_that_cannot_be_written_is_reported(tmp_path, user_settings):
    user_settings(jax_enable_compilation_cache=True, jax_compilation_cache_dir=None)
    (tmp_path / "resolvent").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="compiled programs cannot be stored in"):
        cache.enable_compilation_cache()
    assert not jax.config.values["jax_enable_compilation_cache"]
