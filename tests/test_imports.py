"""What importing costs: a party needs no command line, no plotting and no tables; help needs no JAX."""

import subprocess
import sys

import pytest

HEAVY = ["docstring_parser", "jinja2", "matplotlib", "pandas", "pyarrow", "pydantic", "rich", "ruamel", "tyro"]
PROGRAM = """
import sys

importers = {}

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in %(heavy)r:
            frame = sys._getframe(1)
            while not frame.f_globals.get("__name__", "").startswith("resolvent") and frame.f_back:
                frame = frame.f_back
            importers.setdefault(name, frame.f_globals.get("__name__"))

sys.meta_path.insert(0, Watch())
%(statement)s
print(*(f"{name} (imported by {importers.get(name)})" for name in %(heavy)r if name in sys.modules), sep="\\n")
"""


@pytest.mark.parametrize(("statement", "heavy"), [
    ("import resolvent as rv; rv.fedavg", HEAVY),
    ("import resolvent.cli", [*HEAVY, "jax", "numpy"]),
])
def test_import_loads_no_heavy_package(statement, heavy):
    assert loaded(statement, heavy) == ""


def test_names_of_a_run_load_no_further_namespace():
    """Importing JAX and Equinox takes a second; a namespace of many classes, which few programs need, comes later."""
    program = ("import resolvent as rv, sys\n"
               "rv.fedavg, rv.simulate, rv.SGD, rv.models.mlp, rv.datasets.digits\n"
               "assert not any('portfolio' in name for name in sys.modules)\n"
               "count = sum(name.startswith('resolvent') for name in sys.modules)\n"
               "assert count <= 250, count\n"
               "assert rv.portfolio.__name__ == 'resolvent.problem.portfolio'")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


def loaded(statement, heavy):
    program = PROGRAM % {"heavy": heavy, "statement": statement}
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    return process.stdout.strip()


def test_the_check_sees_a_heavy_package():
    assert "pydantic (imported by resolvent.study." in loaded("import resolvent.study.experiment", HEAVY)


def test_names_of_the_package_are_those_of_the_api():
    """Also the function ``simulate``, which has the name of a package."""
    program = ("import resolvent.simulator.progress, resolvent as rv\n"
               "from resolvent import *\n"
               "assert callable(rv.simulate) and rv.simulate is simulate\n"
               "assert set(rv.__all__) <= set(dir(rv)) and all(hasattr(rv, name) for name in rv.__all__)\n"
               "assert not hasattr(rv, 'nope')")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)
