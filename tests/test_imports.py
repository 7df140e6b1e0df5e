"""What importing costs: a party needs no command line, no plotting and no tables; help needs no JAX."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import resolvent as rv
from resolvent.comparisons.judgement.metrics import columns_of
from resolvent.comparisons.runs.record import DataRecord, MethodRecord, RunRecord, write_record

ROOT = Path(rv.__file__).parent
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


def test_overviews_and_lists_load_no_heavy_package():
    program = """
import contextlib, io
from resolvent.cli import main
text = io.StringIO()
for words in (["--help"], ["site", "--help"], ["list"], ["list", "--format", "json"]):
    sys.argv = ["resolvent", *words]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(text):
        main()
    assert words[0] == "list" or "tyro" not in sys.modules
assert all(word in text.getvalue() for word in ("Exit codes", "approve", "fedavg", "TopK"))
"""
    assert loaded(program, [*{*HEAVY, "jax", "numpy"} - {"tyro", "docstring_parser"}]) == ""


@pytest.mark.when_changed
def test_the_package_loads_no_heavy_package_and_a_run_no_further_namespace():
    """Importing JAX and Equinox takes a second; a namespace of many classes, which few programs need, comes later."""
    program = (PROGRAM % {"heavy": HEAVY, "statement": "import resolvent as rv; rv.fedavg"} +
               "rv.simulate, rv.SGD, rv.models.mlp, rv.datasets.digits\n"
               "count = sum(name.startswith('resolvent') for name in sys.modules)\n"
               "assert count <= 230, count\n"
               # What `resolvent run` imports; python -c would find the folder of the experiments in the repository.
               "import resolvent.cli.commands, resolvent.cli.terminal, resolvent.comparisons.runs.runner\n"
               "from resolvent.comparisons.experiment.registry import registries\n"
               "[registry.functions for registry in registries()]\n"
               "assert 'experiments' not in sys.modules")
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600,
                             cwd=ROOT.parents[1])
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == ""


def test_a_name_that_has_moved_out_of_the_package_says_where_it_is():
    with pytest.raises(AttributeError, match="from experiments import portfolio"):
        rv.portfolio  # noqa: B018 - reading the attribute is what is tested


def loaded(statement, heavy):
    program = PROGRAM % {"heavy": heavy, "statement": statement}
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    return process.stdout.strip()


def test_a_run_is_shown_without_jax(tmp_path):
    record = RunRecord(seed=0, seeds=[0], score="accuracy", split="test", higher_is_better=True, alone=None, level=None,
                       baseline=None, finding="A finding.", data=DataRecord("", ["a"], [9]), methods={
                           "A": MethodRecord(dict.fromkeys(columns_of("accuracy"), 0.5))})
    (tmp_path / "metrics.parquet").touch()
    write_record(tmp_path, record, ["metrics.parquet"])
    statement = f"""
import contextlib, io
from resolvent.cli import main
sys.argv, text = ["resolvent", "show", {str(tmp_path)!r}], io.StringIO()
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(text):
    main()
assert "A finding." in text.getvalue() and "50.0%" in text.getvalue()
count = sum(name.startswith("resolvent") for name in sys.modules)
assert count <= 35, count
"""
    assert loaded(statement, ["jax", "matplotlib", "pandas", "pyarrow"]) == ""


@pytest.mark.when_changed
def test_an_experiment_is_shown_with_the_modules_of_the_parts_that_it_names():
    statement = """
import contextlib, io
from resolvent.cli import main
sys.argv, text = ["resolvent", "show", "digits"], io.StringIO()
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(text):
    main()
assert "careful_local" in text.getvalue()
count = sum(name.startswith("resolvent.") for name in sys.modules)
assert count <= 118, count
"""
    assert loaded(statement, ["resolvent.algorithms.attacks", "resolvent.data.images_text", "resolvent.simulator.run",
                              "resolvent.comparisons.judgement.advice"]) == ""


def test_a_regression_loads_no_namespace_that_its_file_does_not_name():
    statement = """
import resolvent.cli.plan_files, resolvent.comparisons.regression.regress
count = sum(name.startswith("resolvent.") for name in sys.modules)
assert count <= 152, count
"""
    namespaces = ["resolvent.algorithms.presets", "resolvent.datasets", "resolvent.problem.problems",
                  "resolvent.torch.torch_models", "resolvent.comparisons.experiment.experiment_file",
                  "resolvent.tables.encoding", "resolvent.predict.fitted", "resolvent.differential_privacy.ledger",
                  "resolvent.simulator.storage.host_storage"]
    assert loaded(statement, namespaces) == ""


@pytest.mark.when_changed
def test_the_check_sees_a_heavy_package():
    statement = "import resolvent.comparisons.experiment.experiment_file"
    assert "ruamel (imported by resolvent.comparisons." in loaded(statement, HEAVY)


@pytest.mark.when_changed
def test_names_of_the_package_are_those_of_the_api():
    program = ("import resolvent.simulator.record.progress, resolvent as rv\n"
               "from resolvent import *\n"
               "assert callable(rv.simulate) and rv.simulate is simulate\n"
               "assert dir(rv) == sorted([*rv.__all__, '__version__'])\n"
               "assert all(hasattr(rv, name) for name in rv.__all__)\n"
               "assert not hasattr(rv, 'nope')\n"
               "from resolvent.codecs import TopK\n"
               "assert TopK is rv.codecs.TopK")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


NAMESPACES = [name for name in rv.__all__ if isinstance(getattr(rv, name), ModuleType)]


def test_a_misspelt_name_has_a_suggestion():
    with pytest.raises(AttributeError) as caught:
        _ = rv.fedavgg
    assert (caught.value.name, caught.value.obj) == ("fedavgg", rv)  # Python makes the suggestion of them


def test_namespaces_show_their_names_only():
    wrong = []
    for name in (*NAMESPACES, "testing"):
        namespace = import_module(f"resolvent.{name}")
        shown = {n for n in dir(namespace) if not n.startswith("__")}
        if shown != set(namespace.__all__) or getattr(rv, name) is not namespace:
            wrong.append((name, shown ^ {*namespace.__all__}))
    assert wrong == []


PACKAGES = ("resolvent", "xla_cpu_rewrites")
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
IMPORTS = sorted({(node.module, alias.name) for path in BENCHMARKS.rglob("*.py")
                  for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
                  for alias in node.names if (node.module or "").startswith(PACKAGES)})


def test_names_that_benchmarks_import_exist():
    """Most benchmarks run by hand only, so that nothing else tells that a name has moved."""
    assert ("resolvent.predict.intervals", "mean_interval") in IMPORTS
    missing = []
    for module, name in IMPORTS:
        try:
            missing += [] if hasattr(import_module(module), name) else [f"{module}.{name}"]
        except ModuleNotFoundError as error:
            is_ours = (error.name or "").startswith(PACKAGES)
            missing += [module] if is_ours else []  # else an extra is not installed
    assert not missing


def test_namespaces_of_the_docstring():
    listed = re.findall(r"``(\w+)``", rv.__doc__.split("Parts are in namespaces:")[1].split(".")[0])
    assert listed == sorted(NAMESPACES)


def test_no_function_hides_a_module():
    """``import resolvent.simulate.rounds`` failed while ``simulate`` was the name of a package and of a function."""
    packages = [path.parent for path in ROOT.rglob("__init__.py")]
    for package in packages:
        module = import_module(".".join(package.relative_to(ROOT.parent).parts))
        modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
        hidden = [name for name in modules & set(vars(module)) if not isinstance(getattr(module, name), ModuleType)]
        assert not hidden, f"{module.__name__}: {hidden}"


def test_a_command_ends_without_a_last_search_for_garbage():
    """The interpreter's last search would take longer than a second, because it reads all objects of JAX."""
    program = ("import atexit, gc\natexit.register(lambda: print(gc.get_freeze_count(), len(gc.get_objects())))\n"
               "from resolvent.cli import prepare_process\nprepare_process()")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    frozen, left = map(int, ended.stdout.split())
    assert left < 0.01 * frozen
