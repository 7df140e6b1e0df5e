"""Examples in docstrings run, in float32 and in float64, and every preset has one, with its references."""

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import resolvent as rv
from docs.outside_modules import ROOT
from resolvent.algorithms import presets

NAMESPACE = {"rv": rv, "optax": optax, "jnp": jnp, "np": np}


def modules_with_examples():
    """Their names, and their files."""
    specs = (module.module_finder.find_spec(module.name, None)
             for module in pkgutil.walk_packages(rv.__path__, "resolvent."))
    return {spec.name: str(Path(spec.origin).relative_to(ROOT)) for spec in specs
            if ">>>" in spec.loader.get_source(spec.name)}


# Modules whose examples take more than half a second of CPU time.
SLOW = {f"resolvent.{name}" for name in (
    "testing.contract", "testing.codecs", "testing.solvers", "testing.aggregators", "testing.penalties",
    "testing.participations", "simulator.engine.schedulers", "math.gaussian_noise",
    "predict.fitted",
    "problem.models.model", "problem.models.structured_losses", "predict.importance", "problem.solvers.minibatches",
    "comparisons.after.estimators", "comparisons.runs.compare", "comparisons.runs.comparison",
    "comparisons.study.readings", "comparisons.study.study", "comparisons.tuning.sweep",
    "comparisons.tuning.tune", "simulator.record.callbacks", "simulator.engine.rounds",
    "algorithms.combinators.warm_start", "algorithms.aggregators.robust", "algorithms.aggregators.aggregator",
    "algorithms.aggregators.medians",
    "algorithms.attacks", "algorithms.participation.availability",
    "algorithms.participation.arrivals", "algorithms.participation.rules",
    "algorithms.cohort", "math.fixed_point", "math.low_rank", "problem.models.adapters",
    "problem.models.wrapped_modules", "federation.engines.in_process")}


class AnyOutput(doctest.OutputChecker):
    """Accepts every output: only an error is a failure."""

    def check_output(self, want, got, optionflags):
        return True


def run_examples(name, checker=None):
    """Run the examples of a module. Returns their number, and the report of those that failed."""
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(checker, optionflags=doctest.ELLIPSIS)
    report, examples = [], 0
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=NAMESPACE):
        examples += len(test.examples)  # the runner does not count those that need an extra, and are skipped
        runner.run(test, out=report.append)
    return examples, "".join(report) if runner.failures else ""


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.when_changed(file) if name in SLOW else ())
    for name, file in modules_with_examples().items()])
def test_examples_run(name):
    examples, report = run_examples(name)
    assert examples > 0
    assert not report, report


@pytest.mark.nightly
@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_run_in_float64(name):
    """Without an error: numbers are printed with other digits."""
    with jax.enable_x64(True):
        examples, report = run_examples(name, AnyOutput())
    assert examples > 0
    assert not report, report


def test_names_of_modules_are_current():
    assert set(modules_with_examples()) >= SLOW


def test_every_preset_has_an_example_and_references():
    assert [f"{name}: {problem}" for name in presets.__all__ for problem in problems_of(name)] == []


def problems_of(name):
    """What a docstring lacks."""
    lines = inspect.getdoc(getattr(presets, name)).splitlines()
    sections = [line.removesuffix(":") for line in lines if line in ("Args:", "Raises:", "Example:", "References:")]
    if sections not in (["Args", "Example", "References"], ["Args", "Raises", "Example", "References"]):
        yield f"its sections are {sections}"
        return
    first = {section: lines[lines.index(f"{section}:") + 1] for section in ("Example", "References")}
    if not first["Example"].startswith("    >>> ") or not first["References"].strip():
        yield "its example or its references are empty"
