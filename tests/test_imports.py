"""What importing the package costs: a party's process needs neither the command line, nor plotting, nor tables."""

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
import %(module)s
print(*(f"{name} (imported by {importers.get(name)})" for name in %(heavy)r if name in sys.modules), sep="\\n")
"""


@pytest.mark.parametrize("module", ["resolvent", "resolvent.cli"])
def test_import_loads_no_heavy_package(module):
    program = PROGRAM % {"heavy": HEAVY, "module": module}
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert process.stdout.split("\n") == ["", ""], f"import {module} loads {process.stdout.strip()}"


def test_the_check_sees_a_heavy_package():
    program = PROGRAM % {"heavy": HEAVY, "module": "resolvent.study.experiment"}
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert "pydantic (imported by resolvent.study." in process.stdout
