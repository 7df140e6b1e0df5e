"""Examples in docstrings run."""

import doctest
import importlib
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import experiments
import resolvent as rv
from experiments import portfolio

NAMESPACE = {"rv": rv, "portfolio": portfolio, "jax": jax, "jnp": jnp, "np": np}
SLOW = {f"experiments.portfolio.{name}" for name in ("augmenters.gan", "augmenters.vmm", "federation", "evaluation")}
NAMES = [spec.name for module in pkgutil.walk_packages(experiments.__path__, "experiments.")
         if ">>>" in (spec := module.module_finder.find_spec(module.name, None)).loader.get_source(module.name)
         and not module.name.startswith("experiments.tests")]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.nightly if name in SLOW else ())
                                  for name in NAMES])
def test_examples_run(name):
    tried = doctest.testmod(importlib.import_module(name), extraglobs=NAMESPACE, optionflags=doctest.ELLIPSIS)
    assert not tried.failed


def test_names_of_modules_are_current():
    assert set(NAMES) > SLOW
    assert len(NAMES) > 10
