"""Large packages are imported only in the functions that need them."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import resolvent.data
from resolvent.data.digits import _load_digits

LARGE = {"pandas", "pyarrow", "sklearn", "scipy", "matplotlib"}


def imported_at_the_top(tree):
    """The packages that are imported outside functions and outside ``if TYPE_CHECKING``."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def test_no_module_of_the_data_room_imports_a_large_package_at_its_top():
    [folder] = resolvent.data.__path__
    for path in sorted(Path(folder).glob("*.py")):
        assert not LARGE & set(imported_at_the_top(ast.parse(path.read_text("utf-8")))), path.name


@pytest.mark.when_changed
def test_a_run_of_the_digits_is_built_without_large_packages():
    program = ("import sys; from resolvent.comparisons.runs import runner; "
               "from resolvent.comparisons.experiment.experiment_file import ExperimentFile; "
               f"ExperimentFile.load('digits').build(); print(sorted({LARGE!r} & {{*sys.modules}}))")
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert result.stdout.split("\n")[-2] == "[]"


def test_the_digits_are_those_of_scikit_learn():
    images, labels = load_digits(return_X_y=True)
    inputs, classes = _load_digits()
    assert inputs.dtype == np.float32
    assert np.array_equal(inputs * 16, images)
    assert np.array_equal(classes, labels)
