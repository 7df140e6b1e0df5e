"""Examples in docstrings run, and every preset has one, with its references."""

import doctest
import importlib
import inspect
import pkgutil

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import resolvent as rv
from resolvent.algorithms import presets

NAMESPACE = {"rv": rv, "optax": optax, "jnp": jnp, "np": np}


def modules_with_examples():
    specs = (module.module_finder.find_spec(module.name, None)
             for module in pkgutil.walk_packages(rv.__path__, "resolvent."))
    return [spec.name for spec in specs if ">>>" in spec.loader.get_source(spec.name)]


# Modules whose examples run for more than one second.
NIGHTLY = {f"resolvent.{name}" for name in (
    "testing.contract", "problem.portfolio.augmenters.gan", "problem.portfolio.augmenters.vmm",
    "problem.portfolio.augmenters.facts", "problem.portfolio.federation", "problem.portfolio.evaluation",
    "problem.fitted", "problem.control", "problem.models.model", "study.estimators", "study.compare",
    "algorithms.combinators.warm_start", "algorithms.aggregators.robust", "algorithms.participation",
    "deploy.in_process")}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ())
                                  for name in modules_with_examples()])
def test_examples_run(name):
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report, examples = [], 0
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=NAMESPACE):
        examples += len(test.examples)  # the runner does not count those that need an extra, and are skipped
        runner.run(test, out=report.append)
    assert examples > 0
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("name", presets.__all__)
def test_every_preset_has_an_example_and_references(name):
    lines = inspect.getdoc(getattr(presets, name)).splitlines()
    sections = [line.removesuffix(":") for line in lines if line in ("Args:", "Raises:", "Example:", "References:")]
    assert sections in (["Args", "Example", "References"], ["Args", "Raises", "Example", "References"])
    for section in ("Example", "References"):
        assert lines[lines.index(f"{section}:") + 1].strip(), section
    assert lines[lines.index("Example:") + 1].startswith("    >>> ")
