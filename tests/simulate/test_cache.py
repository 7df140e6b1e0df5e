"""Compiled programs are stored for later processes."""

import os
import subprocess
import sys

import pytest

RUN = """
import jax.numpy as jnp, resolvent as rv
problem = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(2)] * 3), jnp.ones((3, 2)))
jnp.ones(3).sum()  # compiles a program before the cache is enabled
rv.simulate(rv.fedavg(rv.solvers.GD(0.1)), problem, rounds=2, progress=False)
"""


def run(**environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XDG_"))}
    return subprocess.run([sys.executable, "-c", RUN], env=clean | environment, capture_output=True, text=True,
                          check=True).stderr


def stored(folder):
    return sorted(p.name for p in folder.rglob("*-cache"))


def test_second_process_compiles_nothing(tmp_path):
    run(XDG_CACHE_HOME=str(tmp_path))
    first = stored(tmp_path / "resolvent" / "xla")
    assert any("run_chunk" in name for name in first)
    run(XDG_CACHE_HOME=str(tmp_path))
    assert stored(tmp_path / "resolvent" / "xla") == first


@pytest.mark.parametrize("setting", ["JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"])
def test_settings_of_the_user_are_respected(tmp_path, setting):
    value = str(tmp_path / "mine") if setting.endswith("DIR") else "false"
    run(XDG_CACHE_HOME=str(tmp_path), **{setting: value})
    assert not (tmp_path / "resolvent").exists()


def test_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "resolvent").write_text("in the way")
    assert "compiled programs cannot be stored in" in run(XDG_CACHE_HOME=str(tmp_path))
